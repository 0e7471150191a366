// Lets the host's threads queue what they are about to queue, before another thread learns that work is done.
//
// A wait by one thread orders what all threads queue later (history.cpp). So a thread that is late would queue its work
// in an order that it did not ask for, and a missing wait would be found in most runs only. With EMULATED_RACES=1, a
// wait therefore ends when all other threads that queue work have nothing to do, or after some time.
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <set>

#include "driver.h"

static std::mutex known;
static std::set<int> queuing, waiting;  // numbers of threads

static int number() {
    static thread_local const int number = int(syscall(SYS_gettid));
    return number;
}

void this_thread_queues() {
    static thread_local bool is_known = false;
    if (is_known || !history::is_kept()) return;
    std::lock_guard<std::mutex> guard(known);
    queuing.insert(number()), is_known = true;
}

// Returns whether a thread sleeps and no other program, such as a compiler, runs for it.
static bool sleeps(int thread, bool& is_there) {
    const std::string folder = "/proc/self/task/" + std::to_string(thread);
    std::string state, children;
    std::ifstream stat(folder + "/stat");
    is_there = bool(std::getline(stat, state));
    std::getline(std::ifstream(folder + "/children"), children);
    const size_t name_end = state.rfind(") ");
    return name_end != std::string::npos && state[name_end + 2] == 'S' && children.empty();
}

static bool others_sleep() {
    if (Guard::waiting > 0) return false;
    std::lock_guard<std::mutex> guard(known);
    bool all = true;
    for (auto thread = queuing.begin(); thread != queuing.end();) {
        bool is_there = true;
        if (*thread != number() && !waiting.count(*thread)) all &= sleeps(*thread, is_there) || !is_there;
        thread = is_there ? std::next(thread) : queuing.erase(thread);
    }
    return all;
}

void let_others_queue() {
    if (!history::is_kept()) return;
    {
        std::lock_guard<std::mutex> guard(known);
        waiting.insert(number());
    }
    for (int tries = 0, quiet = 0; tries < 1000 && quiet < 3; ++tries) {
        quiet = others_sleep() ? quiet + 1 : 0;
        usleep(100);
    }
    std::lock_guard<std::mutex> guard(known);
    waiting.erase(number());
}
