"""lm-eval: likelihoods and texts of a task of its own, with the server's tokenizer."""
import json
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

from checks import run_checks, url

TASKS = {
    "stories": {"output_type": "loglikelihood", "doc_to_text": "{{text}}", "doc_to_target": "{{target}}",
                "metric_list": [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}]},
    "endings": {"output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_target": 0, "doc_to_choice": "{{choices}}",
                "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]},
    "telling": {"output_type": "generate_until", "doc_to_text": "{{text}}", "doc_to_target": "{{target}}",
                "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "temperature": 0.0, "do_sample": False},
                "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]},
}


def evaluated(model, path, *names, **more):
    with tempfile.TemporaryDirectory() as folder:
        lines = [{"text": "Once upon a", "target": " time", "choices": [" time", " zebra"]}, {"text": "There was a little", "target": " girl",
                                                                                          "choices": [" girl", " the"]}]
        Path(folder, "docs.json").write_text("\n".join(map(json.dumps, lines)))
        for name in names:
            task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{folder}/docs.json"}}, "test_split": "test"}
            Path(folder, f"{name}.yaml").write_text(json.dumps(task | TASKS[name]))
        arguments = {"model": "demo", "base_url": url() + path, "num_concurrent": 2, "max_retries": 1, "max_length": 1024} | more
        results = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=list(names), task_manager=TaskManager(include_path=folder),
                                          bootstrap_iters=0, **({"apply_chat_template": True} if "chat" in model else {}))
    return results["results"]


def check_likelihoods_and_texts_of_completions():
    found = evaluated("local-completions", "/v1/completions", "stories", "endings", "telling", tokenizer_backend="remote", tokenized_requests=False)
    assert found["endings"]["acc,none"] == 1 and 1 < found["stories"]["perplexity,none"] < 100


def check_texts_of_chats():
    assert "telling" in evaluated("local-chat-completions", "/v1/chat/completions", "telling", tokenized_requests=False, tokenizer_backend=None)


if __name__ == "__main__":
    run_checks(globals())
