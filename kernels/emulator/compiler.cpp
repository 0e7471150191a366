// An emulated NVRTC. It compiles kernels with the C++ compiler, behind simt.h, and returns the resulting shared library
// as machine code. EMULATED_COMPILER is its version (13000). EMULATED_ASAN=1 adds AddressSanitizer, EMULATED_RACES=1 the
// race checker. EMULATED_PLANT="text=>other" changes the kernels first, so that a test can check whether a fault is
// found; it has no effect if the text is in no file.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

enum Result { SUCCESS = 0, INVALID_INPUT = 3, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
    std::string source, name, log, code;
};

static std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// Returns the folder of this library, which also has simt.h and the objects to link.
static std::string own_folder() {
    Dl_info info;
    dladdr((void*)read_file, &info);
    const std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

static std::string planted(std::string source) {
    const char* plant = getenv("EMULATED_PLANT");
    if (!plant) return source;
    const std::string rule = plant;
    const size_t arrow = rule.find("=>");
    const std::string text = rule.substr(0, arrow), other = rule.substr(arrow + 2);
    for (size_t at = source.find(text); at != std::string::npos; at = source.find(text, at + other.size()))
        source.replace(at, text.size(), other);
    return source;
}

API int nvrtcVersion(int* major, int* minor) {
    const char* text = getenv("EMULATED_COMPILER");
    const int version = text ? atoi(text) : 13000;
    return *major = version / 1000, *minor = version % 1000 / 10, SUCCESS;
}

// The compute capabilities of NVRTC 13.0.
static const int KNOWN[] = {75, 80, 86, 89, 90, 100, 103, 110, 120};
API int nvrtcGetNumSupportedArchs(int* count) { return *count = sizeof KNOWN / sizeof KNOWN[0], SUCCESS; }
API int nvrtcGetSupportedArchs(int* known) { return memcpy(known, KNOWN, sizeof KNOWN), SUCCESS; }

API int nvrtcCreateProgram(Program** out, const char* source, const char* name, int, const char**, const char**) {
    *out = new Program{planted(source), name ? name : "kernels", "", ""};
    return SUCCESS;
}

API int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

// Returns whether the target is one that this compiler knows. Without one, it takes its own default.
static bool knows(int count, const char** options) {
    for (int i = 0; i < count; ++i) {
        const std::string option = options[i];
        if (option.find("--gpu-architecture=") != 0) continue;
        const int target = atoi(option.c_str() + option.find('_') + 1);
        for (const int known : KNOWN)
            if (known == target) return true;
        return false;
    }
    return true;
}

API int nvrtcCompileProgram(Program* program, int count, const char** options) {
    if (!knows(count, options)) return program->log = "an unknown target", INVALID_OPTION;
    char folder[] = "/tmp/lapidary-emulated-XXXXXX";
    if (!mkdtemp(folder)) return INVALID_INPUT;
    const std::string base = std::string(folder) + "/kernels";
    std::ofstream(base + ".cpp") << program->source;
    const char* compiler = getenv("CXX");
    std::string command = std::string(compiler ? compiler : "g++") +
                          " -std=c++17 -O2 -g1 -w -fPIC -shared -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing"
                          " -fsanitize=alignment -fno-sanitize-recover=alignment";
    if (getenv("EMULATED_ASAN")) command += " -fsanitize=address";
    const std::string here = own_folder();
    std::string objects = "'" + here + "/simt.o'";
    // Only the calls of the sanitizers: their libraries are not linked.
    std::string link = getenv("EMULATED_ASAN") ? "" : " -nodefaultlibs -lstdc++ -lm -lgcc_s -lc";
    if (getenv("EMULATED_RACES")) {
        command += " -fsanitize=thread --param tsan-distinguish-volatile=1 --param tsan-instrument-func-entry-exit=0";
        objects += " '" + here + "/races.o'";
    }
    command += " -include '" + here + "/simt.h' '" + base + ".cpp' " + objects + link;
    command += " -o '" + base + ".so' 2> '" + base + ".log'";
    // The compiler itself must not run under the sanitizer that the program was started with.
    const int status = system(("env -u LD_PRELOAD " + command).c_str());
    program->log = read_file(base + ".log");
    program->code = read_file(base + ".so");
    for (const char* end : {".cpp", ".so", ".log"}) unlink((base + end).c_str());
    rmdir(folder);
    return status == 0 && !program->code.empty() ? SUCCESS : COMPILATION;
}

API int nvrtcGetProgramLogSize(Program* program, size_t* size) { return *size = program->log.size() + 1, SUCCESS; }
API int nvrtcGetProgramLog(Program* program, char* log) { return strcpy(log, program->log.c_str()), SUCCESS; }
API int nvrtcGetCUBINSize(Program* program, size_t* size) { return *size = program->code.size(), SUCCESS; }
API int nvrtcGetCUBIN(Program* program, char* code) {
    return memcpy(code, program->code.data(), program->code.size()), SUCCESS;
}
// Assembly is the same library, too.
API int nvrtcGetPTXSize(Program* program, size_t* size) { return nvrtcGetCUBINSize(program, size); }
API int nvrtcGetPTX(Program* program, char* code) { return nvrtcGetCUBIN(program, code); }
API const char* nvrtcGetErrorString(int result) { return result == COMPILATION ? "compilation" : "emulated error"; }
