// The few symbols of the vendor's graph engine that ONNX Runtime's CANN provider imports beside AscendCL: a graph is the
// ONNX bytes it was parsed from, and building it runs the simulated atc. Class layouts are those of the vendor's public
// headers: one shared pointer each.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>

namespace ge {

class AscendString {
  public:
    AscendString() = default;
    AscendString(const char *text);
    bool operator<(const AscendString &other) const;
    std::shared_ptr<std::string> name_;
};

AscendString::AscendString(const char *text) : name_(std::make_shared<std::string>(text == nullptr ? "" : text)) {}

bool AscendString::operator<(const AscendString &other) const
{
    return name_ != nullptr && other.name_ != nullptr ? *name_ < *other.name_ : name_ == nullptr && other.name_ != nullptr;
}

class GraphImpl {
  public:
    std::string onnx;
};

class Graph {
  public:
    explicit Graph(const char *name);
    std::shared_ptr<GraphImpl> impl_;
};

Graph::Graph(const char *) : impl_(std::make_shared<GraphImpl>()) {}

struct ModelBufferData {
    std::shared_ptr<std::uint8_t> data;
    std::uint64_t length;
};

using Options = std::map<AscendString, AscendString>;
constexpr std::uint32_t kSuccess = 0, kFailed = 0xFFFFFFFF;

Options global_options;

std::uint32_t aclgrphBuildInitialize(Options &options)
{
    global_options = options;
    return kSuccess;
}

std::string flag(const Options &options, const char *key, const char *name)
{
    const auto found = options.find(AscendString(key));
    return found == options.end() ? "" : std::string(" --") + name + "='" + *found->second.name_ + "'";
}

void aclgrphBuildFinalize() {}

std::uint32_t aclgrphParseONNXFromMem(const char *bytes, std::size_t size, const Options &, Graph &graph)
{
    graph.impl_->onnx.assign(bytes, size);
    return kSuccess;
}

std::uint32_t aclgrphBuildModel(const Graph &graph, const Options &options, ModelBufferData &model)
{
    char directory[] = "/tmp/graph_engine.XXXXXX";
    if (mkdtemp(directory) == nullptr) {
        return kFailed;
    }
    const std::string base = std::string(directory) + "/model";
    std::ofstream(base + ".onnx", std::ios::binary) << graph.impl_->onnx;
    std::string command = std::string(std::getenv("SIMULATED_ATC")) + " --framework=5 --model=" + base + ".onnx --output=" +
                          base + flag(global_options, "ge.socVersion", "soc_version") +
                          flag(global_options, "ge.exec.precision_mode", "precision_mode") +
                          flag(options, "input_shape", "input_shape") + " >&2";
    std::string om;
    if (std::system(command.c_str()) == 0) {
        std::ifstream file(base + ".om", std::ios::binary);
        om.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    std::remove((base + ".onnx").c_str());
    std::remove((base + ".om").c_str());
    rmdir(directory);
    model.data = std::shared_ptr<std::uint8_t>(new std::uint8_t[om.size()], std::default_delete<std::uint8_t[]>());
    model.length = om.size();
    std::copy(om.begin(), om.end(), model.data.get());
    return om.empty() ? kFailed : kSuccess;
}

std::uint32_t aclgrphSaveModel(const char *path, const ModelBufferData &model)
{
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(model.data.get()), static_cast<std::streamsize>(model.length));
    return file ? kSuccess : kFailed;
}

}  // namespace ge
