// How rsdevices prints what it found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/unit/tools/fake_system.h"

namespace ringsock::tools {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(SurveyText, WhatIsUsableComesFirst) {
  FakeSystem system;
  system.add_device("mlx5_0", "10.7.0.1");
  system.host_addresses.push_back({"eth0", "fe80::1", "mlx5_0", 1});
  system.add_device("siw0", "10.8.0.1", Transport::iwarp);
  system.access_errors["/dev/infiniband/uverbs1"] = ENOENT;
  system.limits[Limit::descriptors] = 100;
  EXPECT_EQ(survey_text(survey(system, default_settings())),
            "usable\n"
            "  mlx5_0    RoCE, port 1 active: 10.7.0.1, fe80::1%eth0\n"
            "  embedded  shared memory, between processes of this host\n"
            "not usable\n"
            "  siw0      iWARP, port 1 active: 10.8.0.1\n"
            "            /dev/infiniband/uverbs1 is missing\n"
            "            > modprobe ib_uverbs; in a container, pass the file in (docker run\n"
            "              --device=/dev/infiniband/uverbs1)\n"
            "could be better\n"
            "  embedded  shared memory\n"
            "            a process may have 100 descriptors (ulimit -n): less memory is kept for the next\n"
            "            connection, short ones cost more\n"
            "            > ulimit -n 1024, or more\n");
}

TEST(SurveyText, NothingIsSaidInSoManyWords) {
  FakeSystem system;
  Settings settings = default_settings();
  settings.config.device = config::DeviceChoice::none;
  const Survey found = survey(system, settings);
  EXPECT_FALSE(found.is_any_usable());
  EXPECT_THAT(survey_text(found), StartsWith("usable\n  nothing\nnot usable\n  rdma      all real devices\n"));
}

TEST(SurveyText, WhatCostsIsNotSaidOfWhatIsNotUsable) {
  FakeSystem system;
  system.add_device("mlx5_0", "10.7.0.1");
  system.limits[Limit::locked_memory] = 8 << 20;
  EXPECT_THAT(survey_text(survey(system, default_settings())), HasSubstr("about 32"));
  system.access_errors["/dev/infiniband/rdma_cm"] = EACCES;
  EXPECT_THAT(survey_text(survey(system, default_settings())), Not(HasSubstr("about 32")));
}

TEST(SurveyText, LinesHaveAHundredColumnsAtMost) {
  FakeSystem system;
  std::istringstream text(survey_text(survey(system, default_settings())));
  for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(SurveyText, OnlyWhatWasAskedForIsLookedAt) {
  FakeSystem system;
  system.add_device("mlx5_0", "10.7.0.1");
  Settings settings = default_settings();
  settings.soft = false;
  EXPECT_THAT(survey_text(survey(system, settings)), Not(HasSubstr("embedded")));
  settings.soft = true;
  settings.rdma = false;
  EXPECT_THAT(survey_text(survey(system, settings)), Not(HasSubstr("mlx5_0")));
}

TEST(SurveyJson, HasDevicesPortsAndFindings) {
  FakeSystem system;
  system.add_device("mlx5_0", "10.7.0.1");
  system.access_errors["/dev/infiniband/uverbs0"] = EACCES;
  const auto json = nlohmann::json::parse(survey_json(survey(system, default_settings())));
  EXPECT_EQ(json["usable"], true);
  ASSERT_EQ(json["devices"].size(), 2u);
  const auto& card = json["devices"][0];
  EXPECT_EQ(card["name"], "mlx5_0");
  EXPECT_EQ(card["kind"], "rdma");
  EXPECT_EQ(card["usable"], false);
  EXPECT_EQ(card["obstacles"][0]["id"], "no-permission");
  EXPECT_THAT(card["obstacles"][0]["remedy"].get<std::string>(), HasSubstr("chmod"));
  EXPECT_EQ(card["ports"][0]["state"], "active");
  EXPECT_EQ(card["ports"][0]["addresses"][0]["address"], "10.7.0.1");
  const auto& embedded = json["devices"][1];
  EXPECT_EQ(embedded["kind"], "soft");
  EXPECT_EQ(embedded["usable"], true);
  EXPECT_EQ(embedded["driver"], nullptr);
  EXPECT_TRUE(json["rdma"]["obstacles"].empty());
}

TEST(SurveyJson, TakesWhatIsNotUtf8) {
  FakeSystem system;
  system.add_device("rxe0", "10.7.0.1");
  system.links["/sys/class/infiniband/rxe0/device/driver"] = "\xff\xfe";
  const auto json = nlohmann::json::parse(survey_json(survey(system, default_settings())));
  EXPECT_EQ(json["devices"][0]["driver"], "\uFFFD\uFFFD");
}

}  // namespace
}  // namespace ringsock::tools
