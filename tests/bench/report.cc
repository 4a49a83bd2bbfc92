#include "tests/bench/report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>

namespace ringsock::bench {

namespace {

/// Three significant digits, with the unit; empty for nothing.
std::string text_of(const Figure& figure, const std::string& unit) {
  if (!figure) return "";
  char text[64];
  const double value = *figure;
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, unit.c_str());
  return text;
}

std::string ratio_text(const Row& row) { return row.ratio() ? text_of(row.ratio(), "×") : ""; }

std::string verdict(const Row& row) {
  const auto reached = row.reached();
  return !reached ? "" : *reached ? "yes" : "no";
}

/// Pads to a width in characters; "×" and "–" are several bytes.
std::string padded(const std::string& text, std::size_t width, bool right) {
  std::size_t characters = 0;
  for (const char byte : text) characters += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  const std::string space(width > characters ? width - characters : 0, ' ');
  return right ? space + text : text + space;
}

void print_line(const std::string& measure, const std::string& kernel, const std::string& ring,
                const std::string& ratio, const std::string& wanted, const std::string& aim,
                const std::string& reached) {
  const std::string line = padded(measure, 58, false) + " | " + padded(kernel, 13, true) + " | " +
                           padded(ring, 13, true) + " | " + padded(ratio, 8, true) + " | " + padded(wanted, 12, false) +
                           " | " + padded(aim, 14, false) + " | " + reached;
  std::printf("%s\n", line.c_str());
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string number_or_null(const Figure& figure) { return figure ? std::to_string(*figure) : "null"; }

std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

std::string machine() {
  utsname name;
  uname(&name);
  return cpu_model() + ", Linux " + name.release;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

}  // namespace

Figure Row::ratio() const {
  if (!ring || !reference || *ring <= 0 || *reference <= 0) return std::nullopt;
  return lower_is_better ? *reference / *ring : *ring / *reference;
}

std::optional<bool> Row::reached() const {
  if (goal.kind == Goal::Kind::none || !ring) return std::nullopt;
  if (goal.kind == Goal::Kind::at_most) return *ring <= goal.value;
  const Figure times = ratio();
  if (!times) return std::nullopt;
  return *times >= goal.value;
}

void print_table(const std::vector<Row>& rows) {
  print_line("measure", "kernel", "ringsock", "ratio", "wanted", "aim", "reached");
  for (const Row& row : rows) {
    print_line(row.measure, text_of(row.kernel, row.unit), text_of(row.ring, row.unit), ratio_text(row), row.goal.text,
               row.aim, verdict(row));
  }
}

void print_json(const std::vector<Row>& rows, int runs) {
  std::printf("{\"date\": %s, \"machine\": %s, \"cpus\": %ld, \"runs\": %d, \"rows\": [\n", quoted(today()).c_str(),
              quoted(machine()).c_str(), sysconf(_SC_NPROCESSORS_ONLN), runs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const auto reached = row.reached();
    std::printf(
        "  {\"measure\": %s, \"unit\": %s, \"kernel\": %s, \"ringsock\": %s, \"ratio\": %s, \"wanted\": %s, \"aim\": "
        "%s, "
        "\"reached\": %s, \"kernel_text\": %s, \"ringsock_text\": %s, \"ratio_text\": %s}%s\n",
        quoted(row.measure).c_str(), quoted(row.unit).c_str(), number_or_null(row.kernel).c_str(),
        number_or_null(row.ring).c_str(), number_or_null(row.ratio()).c_str(), quoted(row.goal.text).c_str(),
        quoted(row.aim).c_str(),
        !reached   ? "null"
        : *reached ? "true"
                   : "false",
        quoted(text_of(row.kernel, row.unit)).c_str(), quoted(text_of(row.ring, row.unit)).c_str(),
        quoted(ratio_text(row)).c_str(), i + 1 < rows.size() ? "," : "");
  }
  std::printf("]}\n");
}

}  // namespace ringsock::bench
