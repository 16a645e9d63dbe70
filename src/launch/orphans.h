// Shared memory that killed ranks leave behind.
#pragma once

namespace tranche {

// UCX makes a file in /dev/shm, fills it and only then removes its name: a process that is killed
// in between leaves it there, and the memory with it. Removes this user's files of that kind that
// no process has open or mapped any more. Never waits; a file that it cannot judge stays.
void RemoveOrphanedSharedMemory();

}  // namespace tranche
