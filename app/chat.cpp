// nibble chat: talk in the terminal; in a pipe, a line in is a message and text comes out.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <random>

#include "app/commands.h"
#include "app/conversation_memory.h"
#include "app/date_option.h"
#include "app/display_text.h"
#include "app/generation.h"
#include "app/history.h"
#include "app/interrupt.h"
#include "app/line_editor.h"
#include "app/loaded_model.h"
#include "app/other_process.h"
#include "app/progress.h"
#include "app/pull_model.h"
#include "app/terminal.h"
#include "app/tool_turn.h"
#include "app/word_wrap.h"
#include "text/chat_prompt.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  GenerationParams params = default_generation_params();
  std::optional<Day> date;
  std::string system;
  std::string tools;  // a file
};

constexpr std::string_view kPrompt = "> ";
constexpr std::string_view kHelp =
    "/reset          forget the conversation so far\n"
    "/system TEXT    how the model shall behave; without TEXT: nothing said about it\n"
    "/seed N         makes the answers from here on repeatable; without N: random again\n"
    "/temperature T  0 is the likeliest text, up to 2\n"
    "/exit           leaves, as Ctrl-D does\n"
    "Ctrl-C stops an answer. Alt-Enter begins a new line. Up and down bring back what you entered.\n"
    "A message that begins with a slash is written with two.\n";

// Where messages come from: a terminal with a line editor, or plain lines.
class MessageSource {
 public:
  MessageSource(std::FILE* in, bool edits, bool prompts, std::FILE* out, const InterruptGuard& interrupts)
      : in_(in), out_(out), prompts_(prompts), interrupts_(interrupts), terminal_(interrupts) {
    if (edits) editor_ = std::make_unique<LineEditor>(terminal_);
  }

  Status open_history() {
    if (!editor_) return {};
    const std::filesystem::path file = History::default_file();
    if (file.empty()) return {};
    NIBBLE_ASSIGN(history_, History::open(file));
    return {};
  }

  LineEditor::Line next(std::string_view prompt) {
    if (!editor_) return plain_line(prompt);
    LineEditor::Line line = editor_->read(prompt, history_.entries());
    // Losing the history is no reason to lose the conversation; the next start says what is wrong with the
    // file.
    if (line.outcome == LineEditor::Outcome::entered) static_cast<void>(history_.add(line.text).ok());
    return line;
  }

 private:
  LineEditor::Line plain_line(std::string_view prompt) {
    if (prompts_) {
      std::fwrite(prompt.data(), 1, prompt.size(), out_);
      std::fflush(out_);
    }
    LineEditor::Line line;
    int c = 0;
    while (!interrupts_.interrupted() && (c = next_byte()) != '\n' && c != EOF)
      line.text += static_cast<char>(c);
    if (interrupts_.take()) {
      line.outcome = LineEditor::Outcome::interrupted;
    } else if (c == EOF && line.text.empty()) {
      line.outcome = LineEditor::Outcome::end_of_input;
    }
    if (line.text.ends_with('\r')) line.text.pop_back();
    return line;
  }

  // EOF too where Ctrl-C ended the wait; any other signal (a window has another size) does not end it.
  int next_byte() {
    for (;;) {
      errno = 0;
      const int c = std::fgetc(in_);
      if (c != EOF || errno != EINTR) return c;
      std::clearerr(in_);
      if (interrupts_.interrupted()) return EOF;
    }
  }

  std::FILE* in_;
  std::FILE* out_;
  bool prompts_;
  const InterruptGuard& interrupts_;
  StandardTerminal terminal_;
  std::unique_ptr<LineEditor> editor_;
  History history_;
};

class Chat {
 public:
  Chat(const Options& options, Console& console, Engine& engine, const Tokenizer& tokenizer,
       const ChatPrompter& prompter, std::optional<JsonValue> tools)
      : params_(options.params),
        console_(console),
        engine_(engine),
        tokenizer_(tokenizer),
        prompter_(prompter),
        tools_(tools),
        typed_(is_terminal(::fileno(console.in))),
        terminal_(is_terminal(::fileno(console.out))),
        color_(wants_color(::fileno(console.out))) {
    memory_.set_system(options.system);
    if (options.engine.given.seed) {
      seed_ = options.engine.seed;
    } else {
      draw_seed();
    }
  }

  Status run() {
    const bool edits = typed_ && ::fileno(console_.in) == STDIN_FILENO &&
                       ::fileno(console_.out) == STDOUT_FILENO && moves_cursor(STDOUT_FILENO);
    const InterruptGuard guard;
    MessageSource source(console_.in, edits, typed_ && terminal_, console_.out, guard);
    if (const Status status = source.open_history(); !status.ok()) note(status.message());
    if (typed_) greet();
    bool leaving = false;  // Ctrl-C at an empty prompt was the last key
    for (;;) {
      const LineEditor::Line line =
          source.next(tool_turn_.waits() ? tool_turn_.prompt() : std::string(kPrompt));
      if (line.outcome == LineEditor::Outcome::end_of_input) return {};
      if (line.outcome == LineEditor::Outcome::interrupted) {
        if (!typed_) return interrupted();
        if (leaving && line.text.empty()) return {};
        leaving = line.text.empty();
        if (leaving) note("Ctrl-C once more leaves, and so does Ctrl-D");
        continue;
      }
      leaving = false;
      NIBBLE_ASSIGN(const bool goes_on, take(line.text, guard));
      if (!goes_on) return {};
    }
  }

 private:
  void draw_seed() {
    std::random_device random;
    seed_ = (std::uint64_t{random()} << 32) | random();
  }

  void put(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), console_.out);
    std::fflush(console_.out);
  }

  // A line of ours, apart from what the model says.
  void note(const std::string& text) {
    if (terminal_) {
      put((color_ ? "\x1b[2m" : "") + visible_text(text) + (color_ ? "\x1b[22m\n" : "\n"));
    } else {
      std::fprintf(console_.err, "%s\n", visible_text(text).c_str());
    }
  }

  void greet() {
    note(engine_.model().name + ", a context of " + std::to_string(engine_.model().max_model_len) +
         " tokens. /help shows the commands.");
  }

  static Status interrupted() {
    return {StatusCode::cancelled, "interrupted; the rest of the input was not read"};
  }

  // False: leave.
  Result<bool> take(const std::string& entry, const InterruptGuard& guard) {
    const std::size_t begin = entry.find_first_not_of(" \t\n");
    if (begin == std::string::npos) return true;
    const std::string_view text = std::string_view(entry).substr(begin);
    if (text.starts_with('/') && !text.starts_with("//")) return obey(text);
    std::string said = text.starts_with('/') ? std::string(text.substr(1)) : entry;
    if (tool_turn_.waits()) {
      memory_.add_result(tool_turn_.take(std::move(said)));
      if (tool_turn_.waits()) return true;
    } else {
      memory_.add_user(std::move(said));
    }
    NIBBLE_RETURN_IF_ERROR(answer(guard));
    return true;
  }

  bool obey(std::string_view text) {
    const std::size_t space = std::min(text.find_first_of(" \t\n"), text.size());
    const std::string_view name = text.substr(0, space);
    std::string_view rest = text.substr(space);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\n"), rest.size()));
    rest = rest.substr(0, rest.find_last_not_of(" \t\n") + 1);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") {
      put(kHelp);
    } else if (name == "/reset") {
      memory_.reset();
      tool_turn_.clear();
      turn_ = 0;
      note("the conversation starts anew");
    } else if (name == "/system") {
      memory_.set_system(std::string(rest));
      note(rest.empty() ? "no system message"
                        : "the system message is set; /reset begins the conversation under it");
    } else if (name == "/seed") {
      set_seed(rest);
    } else if (name == "/temperature") {
      set_temperature(rest);
    } else {
      note("there is no command " + std::string(name) + "; /help shows those there are");
    }
    return true;
  }

  void set_seed(std::string_view text) {
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (text.empty()) {
      draw_seed();
      note("a random seed");
    } else if (error != std::errc() || end != text.data() + text.size()) {
      note("/seed takes a whole number");
    } else {
      seed_ = seed;
      turn_ = 0;
      note("seed " + std::to_string(seed));
    }
  }

  void set_temperature(std::string_view text) {
    float temperature = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), temperature);
    if (error != std::errc() || end != text.data() + text.size() || !(temperature >= 0 && temperature <= 2)) {
      note("/temperature takes a number from 0 to 2");
    } else {
      params_.sampling.temperature = temperature;
      note("temperature " + std::string(text));
    }
  }

  // The prompt for the conversation, shortened from its old end until the answer has room too.
  Result<ChatPrompt> fit() {
    const int context = engine_.model().max_model_len;
    const int room = std::min(params_.sampling.max_tokens, std::max(context / 4, 1));
    int dropped = 0;
    for (;;) {
      NIBBLE_ASSIGN(ChatPrompt prompt, prompter_.render({.messages = memory_.messages(), .tools = tools_}));
      const bool fits = static_cast<std::int64_t>(prompt.ids.size()) + room <= context;
      if (fits || !memory_.drop_oldest_turn()) {
        if (dropped > 0) {
          note("(the context is full: " +
               std::string(dropped == 1 ? "the oldest turn was"
                                        : "the " + std::to_string(dropped) + " oldest turns were") +
               " forgotten)");
        }
        return prompt;
      }
      ++dropped;
    }
  }

  Status answer(const InterruptGuard& guard) {
    NIBBLE_ASSIGN(ChatPrompt prompt, fit());
    GenerationInput input{
        .ids = std::move(prompt.ids), .params = params_, .answer = std::move(prompt.answer)};
    input.params.sampling.seed = seed_ + turn_++;

    ProgressBar reading("reading");
    GenerationCallbacks callbacks;
    callbacks.piece = [&](std::size_t, const AnswerPiece& piece) {
      reading.erase();
      show(piece);
    };
    callbacks.prefill = [&](std::int64_t done, std::int64_t total) {
      if (done < total) reading.update(static_cast<double>(done), static_cast<double>(total));
    };
    callbacks.interrupted = [&] { return guard.interrupted(); };
    const GenerationInput inputs[] = {std::move(input)};
    const Result<std::vector<GenerationResult>> results =
        run_generation(engine_, tokenizer_, inputs, {}, callbacks);
    guard.take();  // one that came too late to stop anything is not about the next prompt
    reading.erase();
    end_answer();
    if (!results.ok()) {
      // Too long for the context even alone, for one: the conversation is as it was before.
      if (results.status().code() != StatusCode::invalid_argument) return results.status();
      memory_.take_back();
      note(results.status().message());
      return {};
    }
    finish(results.value()[0]);
    return results.value()[0].finish == FinishReason::cancelled && !typed_ ? interrupted() : Status();
  }

  void finish(const GenerationResult& result) {
    switch (result.finish) {
      case FinishReason::cancelled: note("(stopped)"); break;
      case FinishReason::length:
      case FinishReason::cut:
        note("(cut after " + std::to_string(result.token_ids.size()) + " tokens)");
        break;
      case FinishReason::error: note("(failed: " + result.error + ")"); break;
      default: break;
    }
    put("\n");
    if (!result.calls.empty() && result.finish == FinishReason::stop) {
      std::vector<ToolCall> calls = result.calls;
      tool_turn_.begin(calls);
      memory_.add_calls(result.text, result.reasoning, std::move(calls));
    } else if (result.text.empty() && result.finish != FinishReason::stop) {
      memory_.take_back();
    } else {
      memory_.add_assistant(result.text);
    }
  }

  void show(const AnswerPiece& piece) {
    const bool reasoning = piece.part == AnswerPart::reasoning;
    if (reasoning && !terminal_) return;
    if (piece.part != AnswerPart::arguments) close_call();
    if (reasoning != reasoning_) {
      if (!reasoning) put(wrapped("\n\n"));
      if (color_) put(reasoning ? "\x1b[2m" : "\x1b[22m");
      reasoning_ = reasoning;
    }
    const std::string text = visible_text(piece.text);
    if (piece.part == AnswerPart::call) {
      put(wrapped((at_line_begin_ ? "call: " : "\ncall: ") + text + "("));
      at_line_begin_ = false;
      in_call_ = true;
      return;
    }
    put(wrapped(text));
    at_line_begin_ = text.ends_with('\n');
  }

  void close_call() {
    if (!in_call_) return;
    put(wrapped(")\n"));
    in_call_ = false;
    at_line_begin_ = true;
  }

  std::string wrapped(std::string_view text) {
    return terminal_ ? wrapper_.push(text, terminal_columns(::fileno(console_.out))) : std::string(text);
  }

  void end_answer() {
    close_call();
    put(wrapper_.flush());
    if (reasoning_ && color_) put("\x1b[22m");
    if (!at_line_begin_) put(wrapped("\n"));
    reasoning_ = false;
    at_line_begin_ = true;
  }

  GenerationParams params_;
  Console& console_;
  Engine& engine_;
  const Tokenizer& tokenizer_;
  const ChatPrompter& prompter_;
  std::optional<JsonValue> tools_;  // that the model may call
  bool typed_;                      // by a person, not read from a pipe
  bool terminal_;
  bool color_;
  ConversationMemory memory_;
  ToolTurn tool_turn_;
  std::uint64_t seed_ = 0;
  std::uint64_t turn_ = 0;  // since the last reset; each turn draws anew
  bool reasoning_ = false;  // what was printed last
  bool at_line_begin_ = true;
  bool in_call_ = false;  // its arguments are printed
  WordWrapper wrapper_;
};

Status run(const Options& options, Console& console) {
  std::optional<JsonDocument> tools;
  if (!options.tools.empty()) {
    NIBBLE_ASSIGN(tools, read_tools(options.tools, console));
  }
  NIBBLE_ASSIGN(EngineOptions engine_options, options_of_process(options.engine));
  // One conversation: memory for its context alone.
  if (!engine_options.given.max_num_seqs) engine_options.max_num_seqs = 1;
  if (const std::optional<Status> done = run_steps_of_another(engine_options)) return *done;
  NIBBLE_RETURN_IF_ERROR(offer_pull(options.engine.model, console));
  exit_on_interrupt();
  ProgressBar loading("loading " + options.engine.model);
  loading.announce();
  NIBBLE_ASSIGN(const LoadedModel loaded,
                load_model(engine_options, [&](double done, double total) { loading.update(done, total); }));
  const std::unique_ptr<Engine>& engine = loaded.engine;
  const Tokenizer& tokenizer = loaded.tokenizer;
  NIBBLE_ASSIGN(const ChatPrompter prompter,
                ChatPrompter::load(engine->model().folder, tokenizer, options.date));
  loading.erase();
  if (tools && !prompter.reads_calls())
    return invalid_argument("--tools: this model's chat template writes calls in no form that is known here");
  const std::optional<JsonValue> offered = tools ? std::optional(tools->root()) : std::nullopt;
  return Chat(options, console, *engine, tokenizer, prompter, offered).run();
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  options->engine.model = "demo";
  SamplingParams& sampling = options->params.sampling;
  sampling.max_tokens = 1 << 30;
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a directory, a name in the Hugging Face cache, or demo",
                       .target = &options->engine.model,
                       .required = false}};
  line.options = {
      {.name = "--system",
       .value = "TEXT",
       .help = "how the model shall behave",
       .set = string_value(options->system)},
      {.name = "--tools",
       .value = "FILE",
       .help = "functions that the model may call, as JSON; you type what they return",
       .set = string_value(options->tools)},
      {.name = "--max-tokens",
       .aliases = {"-n"},
       .value = "N",
       .help = "longest answer",
       .default_text = "what the context leaves",
       .set = int_value(sampling.max_tokens, 1, 1 << 30)},
  };
  line.options.push_back(date_option_spec(options->date));
  line.add(sampling_option_specs(options->params));
  line.add(engine_option_specs(options->engine));
  for (OptionSpec& option : line.options) {
    if (option.name == "--seed") option.default_text = "random";
  }
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command chat_command{
    .name = "chat", .summary = "talk in the terminal", .example = "nibble chat", .declare = declare};

}  // namespace nibble
