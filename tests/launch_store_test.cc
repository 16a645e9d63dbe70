// The store: every rank gets every blob, who does not come or goes away is named, and nothing that
// arrives at its port breaks it.
#include "launch/store.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Clients = std::vector<std::unique_ptr<StoreClient>>;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

std::unique_ptr<StoreServer> Serve(int ranks, double silence = 10) {
  auto server = StoreServer::Start({.loopback_only = true,
                                    .job = "job",
                                    .secret = "secret",
                                    .world_size = ranks,
                                    .heartbeat_seconds = 0.05,
                                    .silence_seconds = silence});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

StoreClientOptions Member(const StoreServer& server, int rank, int ranks, double timeout = 30) {
  return {.host = "127.0.0.1",
          .port = server.port(),
          .served_by = "rank 0",
          .job = "job",
          .secret = "secret",
          .rank = rank,
          .world_size = ranks,
          .timeout_seconds = timeout};
}

std::unique_ptr<StoreClient> Join(const StoreClientOptions& options) {
  auto client = StoreClient::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

Clients JoinAll(const StoreServer& server, int ranks, double timeout = 30) {
  Clients clients;
  for (int r = 0; r < ranks; ++r) clients.push_back(Join(Member(server, r, ranks, timeout)));
  return clients;
}

// Runs `work(rank)` for every rank at once.
template <typename Work>
void OnEach(int ranks, const Work& work) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { work(r); });
  for (std::thread& thread : threads) thread.join();
}

// What a rank is told of others, and how often.
struct Told {
  std::promise<std::string> first;
  std::atomic<int> times{0};
  std::function<void(const absl::Status&)> Listener() {
    return [this](const absl::Status& why) {
      EXPECT_EQ(why.code(), absl::StatusCode::kAborted);
      if (times++ == 0) first.set_value(Text(why));
    };
  }
  std::string Await() { return first.get_future().get(); }
};

class StoreRanks : public ::testing::TestWithParam<int> {};

TEST_P(StoreRanks, ExchangeEveryBlobInRankOrderAndLeave) {
  const int ranks = GetParam();
  const auto server = Serve(ranks);
  const Clients clients = JoinAll(*server, ranks);
  OnEach(ranks, [&](int rank) {
    StoreClient& mine = *clients[static_cast<size_t>(rank)];
    const auto blob = [](int r, int round) {
      return std::string(static_cast<size_t>(r * 1000 + (round == 3 ? 300'000 : round)),
                         static_cast<char>('a' + r));
    };
    // Ranks run ahead of each other; the same name is used again.
    for (int round = 0; round < 6; ++round) {
      const auto all = mine.Exchange(round < 3 ? "one" : "two", blob(rank, round));
      ASSERT_TRUE(all.ok()) << all.status();
      ASSERT_EQ(all->size(), static_cast<size_t>(ranks));
      for (int r = 0; r < ranks; ++r) EXPECT_EQ((*all)[static_cast<size_t>(r)], blob(r, round));
    }
    EXPECT_TRUE(mine.Barrier("end").ok());
    EXPECT_TRUE(mine.Goodbye(30).ok());
  });
  EXPECT_FALSE(server->failure().has_value());
}
INSTANTIATE_TEST_SUITE_P(All, StoreRanks, ::testing::Values(1, 2, 3, 5, 8));

TEST(Store, NamesEachRankThatHasNotComeToAllThatWait) {
  const auto server = Serve(8);
  Clients clients;
  for (const int r : {0, 1, 3, 4, 5, 6, 7}) clients.push_back(Join(Member(*server, r, 8, 2)));
  clients[4]->SetPhase("load");  // rank 5
  OnEach(4, [&](int i) {
    const auto all = clients[static_cast<size_t>(i)]->Exchange("addresses", "x");
    EXPECT_EQ(all.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(Text(all.status()),
              "ranks 2 and 5-7 of 8 have not come to \"addresses\" within 2.0s (rank 2 has not "
              "joined; rank 5 is in phase \"load\"; rank 6 has joined; rank 7 has joined)");
  });
}

TEST(Store, NamesWhereTheOtherRanksWait) {
  const auto server = Serve(2);
  const auto first = Join(Member(*server, 0, 2, 0.5)), second = Join(Member(*server, 1, 2, 30));
  std::thread elsewhere([&] { (void)second->Exchange("weights", ""); });
  // The other rank may not wait yet the first time.
  std::string says;
  while (!absl::StrContains(says, "waits")) says = Text(first->Exchange("recipe", "").status());
  EXPECT_THAT(says,
              HasSubstr("rank 1 of 2 has not come to \"recipe\" within 500ms (rank 1 waits in "
                        "\"weights\")"));
  first->ReportFailure("enough");
  elsewhere.join();
}

TEST(Store, ARankThatSaysGoodbyeIsNotWaitedFor) {
  const auto server = Serve(3);
  const Clients clients = JoinAll(*server, 3);
  std::thread leaving([&] { (void)clients[2]->Goodbye(30); });
  const auto all = clients[0]->Exchange("weights", "");  // its time would be 30 s
  EXPECT_THAT(Text(all.status()), HasSubstr("rank 2 has said goodbye"));
  clients[0]->ReportFailure("rank 2 was early");
  leaving.join();
}

TEST(Store, TellsEveryOtherRankOnceWhenAConnectionEnds) {
  const auto server = Serve(4);
  Told told[4];
  Clients clients;
  for (int r = 0; r < 4; ++r) {
    StoreClientOptions options = Member(*server, r, 4);
    options.on_failure = told[r].Listener();
    clients.push_back(Join(options));
  }
  std::thread waiting([&] {
    const auto all = clients[0]->Exchange("weights", "");
    EXPECT_EQ(all.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(Text(all.status()), HasSubstr("rank 2 failed in phase \"step 17\""));
  });
  clients[2]->SetPhase("load");
  clients[2]->SetPhase("step 17");
  clients[2].reset();
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(told[r].Await(),
                HasSubstr("rank 2 failed in phase \"step 17\": its connection closed"));
  }
  waiting.join();
  clients[1].reset();  // what follows is no news
  clients[3].reset();
  clients.clear();
  for (const int r : {0, 1, 3}) EXPECT_EQ(told[r].times, 1);
  EXPECT_EQ(told[2].times, 0);
  EXPECT_EQ(server->failure()->rank, 2);
}

TEST(Store, TellsWhatARankSaysOfItsFailure) {
  const auto server = Serve(2);
  Told told;
  StoreClientOptions options = Member(*server, 0, 2);
  options.on_failure = told.Listener();
  const auto first = Join(options);
  auto second = Join(Member(*server, 1, 2));
  second->SetPhase("save");
  second->ReportFailure("the disk is full");
  second.reset();
  EXPECT_EQ(told.Await(), "rank 1 failed in phase \"save\": the disk is full");
}

TEST(Store, TellsWhoComesLaterOfARankThatHasEnded) {
  const auto server = Serve(3);
  server->RankEnded(1, "it exited with code 3");  // before anybody has joined
  EXPECT_FALSE(server->failure().has_value());
  Told told;
  StoreClientOptions options = Member(*server, 0, 3);
  options.on_failure = told.Listener();
  const auto first = Join(options);
  EXPECT_EQ(told.Await(), "rank 1 failed: it exited with code 3");
}

TEST(Store, ALostStoreIsNamedByWhoServedIt) {
  auto server = Serve(2);
  Told told[2];
  Clients clients;
  for (int r = 0; r < 2; ++r) {
    StoreClientOptions options = Member(*server, r, 2);
    options.on_failure = told[r].Listener();
    clients.push_back(Join(options));
  }
  server.reset();
  for (Told& each : told) EXPECT_THAT(each.Await(), HasSubstr("rank 0 has ended or failed"));
  EXPECT_EQ(clients[0]->Barrier("x").code(), absl::StatusCode::kAborted);
}

std::string HelloFrame(absl::string_view job, absl::string_view secret, uint32_t rank,
                       uint32_t ranks) {
  return FrameWriter(FrameKind::kHello)
      .Bytes(kStoreMagic)
      .Bytes(secret)
      .Bytes(job)
      .Number(rank)
      .Number(ranks)
      .Finish();
}

FileDescriptor Dial(const StoreServer& server) {
  auto fd = ConnectTo("127.0.0.1", server.port(), SteadyClock::now() + Seconds(30));
  EXPECT_TRUE(fd.ok()) << fd.status();
  return *std::move(fd);
}

void Say(const FileDescriptor& fd, const std::string& bytes) {
  (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

TEST(Store, ASilentRankIsLostAlthoughItsConnectionStands) {
  const auto server = Serve(2, /*silence=*/2);
  Told told;
  StoreClientOptions options = Member(*server, 0, 2);
  options.on_failure = told.Listener();
  const auto first = Join(options);
  const FileDescriptor silent = Dial(*server);
  Say(silent, HelloFrame("job", "secret", 1, 2));
  EXPECT_EQ(told.Await(), "rank 1 failed: it has not been heard of for 2.0s");
}

// Both sides say who does not belong; the job that has the port goes on.
TEST(Store, RefusesWhoDoesNotBelong) {
  const auto server = Serve(2);
  const auto first = Join(Member(*server, 0, 2));
  struct Stranger {
    StoreClientOptions options;
    std::string says;
  };
  std::vector<Stranger> strangers(5, {Member(*server, 1, 2), ""});
  strangers[0].options.job = "another";
  strangers[0].says = "belongs to another job (\"job\", not \"another\")";
  strangers[1].options.secret = "guess";
  strangers[1].says = "another secret";
  strangers[2].options.world_size = 4;
  strangers[2].says = "this job has 2 ranks, not 4";
  strangers[3].options.rank = 0;
  strangers[3].says = "rank 0 is there twice";
  strangers[4].options.rank = 2;
  strangers[4].says = "this job has 2 ranks";
  for (const Stranger& stranger : strangers) {
    ::testing::internal::CaptureStderr();
    const auto client = StoreClient::Connect(stranger.options);
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_EQ(client.status().code(), absl::StatusCode::kFailedPrecondition) << stranger.says;
    EXPECT_THAT(Text(client.status()), HasSubstr(stranger.says));
    EXPECT_THAT(log, HasSubstr(stranger.says));
  }
  const auto second = Join(Member(*server, 1, 2));
  OnEach(2, [&](int r) { EXPECT_TRUE((r == 0 ? first : second)->Goodbye(30).ok()); });
}

TEST(Store, APortInUseIsNamed) {
  const auto server = Serve(2);
  const auto second = StoreServer::Start({.port = server->port(), .loopback_only = true});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(second.status()), HasSubstr(absl::StrCat("port ", server->port())));
}

TEST(Store, NobodyThereIsSaidWithWhatWasTried) {
  int port = 0;
  {
    const auto listener = ListenOn(0, true);
    port = LocalPort(*listener);
  }
  const auto client = StoreClient::Connect({.host = "127.0.0.1",
                                            .port = port,
                                            .served_by = "rank 0",
                                            .rank = 3,
                                            .timeout_seconds = 0.2});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(client.status()),
              AllOf(HasSubstr("rank 3"), HasSubstr(absl::StrCat("127.0.0.1:", port)),
                    HasSubstr("refused"), HasSubstr("is rank 0 running")));
}

// Another program has the port: it greets, it hangs up, or it says nothing.
TEST(Store, AnotherProgramOnThePortIsNoStore) {
  for (const std::string greeting : {"SSH-2.0-OpenSSH_9.2p1\r\n", "", "silent"}) {
    const auto listener = ListenOn(0, true);
    std::promise<void> done;
    std::thread program([&] {
      int fd = -1;
      while ((fd = ::accept(listener->get(), nullptr, nullptr)) < 0) std::this_thread::yield();
      const FileDescriptor connection(fd);
      if (greeting == "silent") {
        done.get_future().wait();
      } else {
        (void)!::write(fd, greeting.data(), greeting.size());
      }
    });
    const auto client = StoreClient::Connect({.host = "127.0.0.1",
                                              .port = LocalPort(*listener),
                                              .served_by = "rank 0",
                                              .timeout_seconds = greeting == "silent" ? 0.3 : 30});
    done.set_value();
    program.join();
    ASSERT_FALSE(client.ok());
    EXPECT_THAT(Text(client.status()), HasSubstr("another program"));
  }
}

std::string Mutated(std::string bytes, RandomSequence& random) {
  const uint64_t changes = 1 + random.Below(4);
  for (uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t at = random.Below(bytes.size());
    switch (random.Below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random.Next32());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, 1 + random.Below(20), static_cast<char>(random.Next32()));
        break;
      case 3:
        bytes[at] = static_cast<char>(0xff);
        break;
      default:
        bytes.erase(at, 1 + random.Below(8));
    }
  }
  return bytes;
}

TEST(Store, BytesFromStrangersLeaveTheJobAlone) {
  const auto server = Serve(2);
  const Clients clients = JoinAll(*server, 2);
  RandomSequence random(1);
  ::testing::internal::CaptureStderr();
  for (int round = 0; round < 300; ++round) {
    const FileDescriptor stranger = Dial(*server);
    // Never the right secret: a mutation could keep it.
    Say(stranger, Mutated(HelloFrame("job", "guess", 1, 2) + HelloFrame("", "", 0, 1), random));
  }
  OnEach(2, [&](int r) {
    const auto all = clients[static_cast<size_t>(r)]->Exchange("after", absl::StrCat(r));
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(*all, (std::vector<std::string>{"0", "1"}));
    EXPECT_TRUE(clients[static_cast<size_t>(r)]->Goodbye(30).ok());
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 10);  // a port scan does not fill the log
}

// A member gone mad ends its job in an orderly way, or does no harm; the server lives.
TEST(Store, DamagedMessagesOfAMemberEndNoServer) {
  RandomSequence random(2);
  for (int round = 0; round < 30; ++round) {
    const auto server = Serve(2);
    const auto first = Join(Member(*server, 0, 2));
    {
      const FileDescriptor member = Dial(*server);
      Say(member, HelloFrame("job", "secret", 1, 2));
      const std::string messages =
          FrameWriter(FrameKind::kPhase).Bytes("load").Finish() +
          FrameWriter(FrameKind::kExchange).Bytes("x").Number(1000).Bytes("blob").Finish() +
          FrameWriter(FrameKind::kHeartbeat).Finish();
      Say(member, Mutated(messages, random));
    }
    // The member is gone without a goodbye, whatever it said.
    EXPECT_EQ(first->Goodbye(30).code(), absl::StatusCode::kAborted);
    EXPECT_EQ(server->failure()->rank, 1);
  }
}

}  // namespace
}  // namespace tranche
