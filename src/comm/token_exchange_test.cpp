#include "comm/token_exchange.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "comm/comm_test_util.h"

namespace nibble {
namespace {

constexpr int hidden = 48, experts = 13, top_k = 4, most_rows = 8;

// A member's rows: the first value of a row says whose it is.
struct Tokens {
  std::vector<float> x;
  std::vector<std::int32_t> ids;
  int rows() const { return static_cast<int>(ids.size()) / top_k; }
  TokenRows view() const { return {.rows = rows(), .x = x.data(), .ids = ids.data()}; }
};

Tokens tokens_of(int member, int rows, const std::function<std::int32_t(int row, int choice)>& expert) {
  Tokens tokens;
  tokens.x = wide_floats(static_cast<unsigned>(member) + 1, static_cast<std::size_t>(rows * hidden));
  for (int row = 0; row < rows; ++row) {
    tokens.x[static_cast<std::size_t>(row * hidden)] = static_cast<float>(member * 100 + row);
    for (int choice = 0; choice < top_k; ++choice) tokens.ids.push_back(expert(row, choice));
  }
  return tokens;
}

// What an expert makes of a row: of each expert something else, and nothing of other rows.
float made_of(float x, std::int32_t expert) { return x * static_cast<float>(expert + 2) + 1.0f; }

ExchangeShape shape_of(ExchangeKind kind, int members) {
  ExchangeShape shape{
      .kind = kind, .members = members, .top_k = top_k, .hidden = hidden, .most_rows = most_rows};
  for (int member = 0; member <= members; ++member)
    shape.experts[static_cast<std::size_t>(member)] = experts * member / members;
  return shape;
}

constexpr ExchangeKind kinds[] = {ExchangeKind::normal, ExchangeKind::low_latency};

struct Member {
  Member(const ExchangeShape& of, Communicator& own)
      : shape(of),
        communicator(own),
        x(static_cast<std::size_t>(of.places() * hidden)),
        ids(static_cast<std::size_t>(of.places() * of.ids_a_place())),
        exchange(of, {.x = x.data(), .ids = ids.data()}) {}

  const ExchangeShape shape;
  Communicator& communicator;
  std::vector<float> x;
  std::vector<std::int32_t> ids;
  TokenExchange exchange;
};

// Each place's and id's product, as a rank's expert kernel makes them.
std::vector<float> products_of(const Member& member, int places) {
  std::vector<float> products(member.ids.size() * hidden, NAN);
  const int each = member.shape.ids_a_place();
  for (int slot = 0; slot < places * each; ++slot) {
    const std::int32_t id = member.ids[static_cast<std::size_t>(slot)];
    if (id < 0) continue;
    EXPECT_EQ(member.shape.member_of(id), member.communicator.member());
    for (int i = 0; i < hidden; ++i) {
      products[static_cast<std::size_t>(slot * hidden + i)] =
          made_of(member.x[static_cast<std::size_t>(slot / each * hidden + i)], id);
    }
  }
  return products;
}

void expect_results(const Tokens& tokens, const std::vector<float>& results) {
  for (int slot = 0; slot < tokens.rows() * top_k; ++slot) {
    const std::int32_t id = tokens.ids[static_cast<std::size_t>(slot)];
    for (int i = 0; i < hidden; ++i) {
      const float x = tokens.x[static_cast<std::size_t>(slot / top_k * hidden + i)];
      const float expected = id < 0 ? 0.0f : made_of(x, id);
      ASSERT_EQ(results[static_cast<std::size_t>(slot * hidden + i)], expected) << slot << " " << i;
    }
  }
}

void exchange(Member& member, const Tokens& tokens) {
  const Result<int> places = member.exchange.dispatch(member.communicator, tokens.view());
  ASSERT_TRUE(places.ok()) << places.status().message();
  const std::vector<float> products = products_of(member, *places);
  std::vector<float> results(tokens.ids.size() * hidden, NAN);
  ASSERT_TRUE(member.exchange.combine(member.communicator, products.data(), results.data()).ok());
  expect_results(tokens, results);
}

using ExpertOf = std::function<std::int32_t(int member, int row, int choice)>;

// Rounds of changing sizes, with slots that take everything and slots that take a few rows.
void expect_exchanges(const ExpertOf& expert, const std::function<int(int member, int round)>& rows_of) {
  for (const ExchangeKind kind : kinds) {
    for (const int ranks : {1, 2, 4, 8}) {
      std::vector<Communicator> members = members_of(whole_world(ranks), 4096);
      on_each(members, [&](Communicator& communicator) {
        Member member(shape_of(kind, ranks), communicator);
        const int me = communicator.member();
        for (int round = 0; round < 5; ++round) {
          exchange(member, tokens_of(me, rows_of(me, round),
                                     [&](int row, int choice) { return expert(me, row + round, choice); }));
        }
      });
    }
  }
}

std::int32_t scattered(int member, int row, int choice) {
  std::mt19937 random(static_cast<unsigned>(member * 1000 + row));
  const auto first = static_cast<std::int32_t>(random() % experts);
  return (first + choice * 3) % experts;
}

TEST(TokenExchange, BringsEveryResultBackToItsRowAndChoice) {
  expect_exchanges(scattered,
                   [](int member, int round) { return (member * 3 + round * 5) % (most_rows + 1); });
}

TEST(TokenExchange, TakesMembersWithoutRows) {
  expect_exchanges(scattered, [](int member, int) { return member == 0 ? most_rows : 0; });
  expect_exchanges(scattered, [](int, int) { return 0; });
}

TEST(TokenExchange, TakesAllRowsOnOneMember) {
  expect_exchanges([](int, int, int choice) { return choice < 1 ? 0 : -1; },
                   [](int, int) { return most_rows; });
}

TEST(TokenExchange, IdsOfNobodyTravelNowhereAndGiveZero) {
  expect_exchanges([](int member, int row,
                      int choice) { return (row + choice) % 3 == 0 ? -1 : scattered(member, row, choice); },
                   [](int member, int) { return member + 1; });
  expect_exchanges([](int, int, int) { return -1; }, [](int, int) { return 3; });
}

TEST(TokenExchange, RowsArriveOnceInTheOrderOfSourceAndRow) {
  constexpr int ranks = 4;
  std::vector<Communicator> members = members_of(whole_world(ranks), 4096);
  on_each(members, [&](Communicator& communicator) {
    Member member(shape_of(ExchangeKind::normal, ranks), communicator);
    const int me = communicator.member();
    // All four choices of every row lie on two members.
    const Tokens tokens = tokens_of(me, most_rows, [](int row, int choice) {
      return choice < 2 ? choice : 3 + row % 3 + (choice - 2) * 7 % 3;
    });
    const Result<int> places = member.exchange.dispatch(communicator, tokens.view());
    ASSERT_TRUE(places.ok());
    EXPECT_LE(*places, ranks * most_rows);
    EXPECT_TRUE(me != 0 || *places == ranks * most_rows);
    for (int place = 1; place < *places; ++place) {
      EXPECT_LT(member.x[static_cast<std::size_t>((place - 1) * hidden)],
                member.x[static_cast<std::size_t>(place * hidden)]);
    }
    std::vector<float> results(tokens.ids.size() * hidden);
    const std::vector<float> products = products_of(member, *places);
    EXPECT_TRUE(member.exchange.combine(communicator, products.data(), results.data()).ok());
  });
}

TEST(TokenExchange, RefusesWhatItHasNoRoomFor) {
  std::vector<Communicator> members = members_of(whole_world(1), 4096);
  for (const ExchangeKind kind : kinds) {
    Member member(shape_of(kind, 1), members[0]);
    const auto of = [&](int rows) { return tokens_of(0, rows, [](int, int choice) { return choice; }); };
    const Tokens many = of(most_rows + 1), some = of(2);
    EXPECT_NE(member.exchange.dispatch(members[0], many.view()).status().message().find("may send 8 at once"),
              std::string::npos);
    EXPECT_TRUE(member.exchange.dispatch(members[0], some.view()).ok());
    EXPECT_NE(member.exchange.dispatch(members[0], some.view()).status().message().find("combined"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace nibble
