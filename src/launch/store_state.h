// What the store's server knows of its connections, members and exchanges; for store_*.cc alone.
#pragma once

#include <optional>
#include <string>

#include "launch/store.h"

namespace tranche {

struct StoreServer::Connection {
  FileDescriptor fd;
  FrameBuffer in;
  std::string out;
  size_t sent = 0;
  int rank = -1;         // before its hello
  bool closing = false;  // closed once `out` is sent
  bool gone = false;
  SteadyClock::time_point opened, heard;
};

struct StoreServer::Member {
  bool joined = false;   // has said hello
  bool leaving = false;  // has said goodbye
  std::string phase;
  std::string ended;  // how its process ended, where its starter has said so
};

struct StoreServer::Contribution {
  std::string blob;
  double seconds = 0;  // how long it waits for the others
  SteadyClock::time_point deadline;
};

}  // namespace tranche
