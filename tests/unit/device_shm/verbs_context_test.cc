// The extended verbs_context: what <infiniband/verbs.h> implements inline never calls through null.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

TEST(VerbsContext, QueriesWork) {
  auto device = must(SoftDevice::open());
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(&device->context(), nullptr, &attr), 0);
  EXPECT_GE(attr.orig_attr.max_qp_wr, 512);
  EXPECT_EQ(attr.orig_attr.atomic_cap, IBV_ATOMIC_GLOB);
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(&device->context(), 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(ibv_query_port(&device->context(), 2, &port), EINVAL);
}

TEST(VerbsContext, WithoutAsyncEventsTheDeviceTakesNoDescriptor) {
  const UniqueFd before(::dup(0));
  auto device = must(SoftDevice::open({.async_events = false}));
  EXPECT_EQ(device->context().async_fd, -1);
  const UniqueFd after(::dup(0));
  EXPECT_EQ(after.get(), before.get() + 1);
  EXPECT_EQ(device->get_async_event().error().code, EAGAIN);
}

TEST(VerbsContext, WhatTheDeviceDoesNotHaveIsNotSupported) {
  RcPair pair;
  ibv_context* context = &pair.alice.device->context();
  ibv_qp* qp = pair.alice.qp.get();
  errno = 0;
  EXPECT_EQ(ibv_create_flow(qp, nullptr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_alloc_mw(pair.alice.pd.get(), IBV_MW_TYPE_1), nullptr);
  ibv_alloc_dm_attr dm{};
  EXPECT_EQ(ibv_alloc_dm(context, &dm), nullptr);
  ibv_xrcd_init_attr xrcd_attr{};
  EXPECT_EQ(ibv_open_xrcd(context, &xrcd_attr), nullptr);
  ibv_xrcd xrcd{context};
  EXPECT_EQ(ibv_close_xrcd(&xrcd), EOPNOTSUPP);
  ibv_cq_init_attr_ex cq_attr{};
  cq_attr.cqe = 1;
  EXPECT_EQ(ibv_create_cq_ex(context, &cq_attr), nullptr);
  ibv_qp_rate_limit_attr rate{};
  EXPECT_EQ(ibv_modify_qp_rate_limit(qp, &rate), EOPNOTSUPP);
  ibv_values_ex values{};
  EXPECT_EQ(ibv_query_rt_values_ex(context, &values), EOPNOTSUPP);
  ibv_parent_domain_init_attr parent{};
  EXPECT_EQ(ibv_alloc_parent_domain(context, &parent), nullptr);
  ibv_modify_cq_attr moderation{};
  EXPECT_NE(ibv_modify_cq(pair.alice.cq.get(), &moderation), 0);
  ibv_mw window{context, pair.alice.pd.get(), 0, 0, IBV_MW_TYPE_1};
  ibv_mw_bind bind{};
  EXPECT_EQ(ibv_bind_mw(qp, &window, &bind), EOPNOTSUPP);
  EXPECT_EQ(ibv_dealloc_mw(&window), EOPNOTSUPP);
}

TEST(VerbsContext, RegistrationChecksItsArguments) {
  End end;
  char memory[8];
  EXPECT_EQ(end.device->reg_mr(*end.pd, memory, 8, IBV_ACCESS_REMOTE_WRITE).error().code, EINVAL);
  EXPECT_EQ(end.device->reg_mr(*end.pd, memory, SIZE_MAX, 0).error().code, EINVAL);
  EXPECT_EQ(end.device->reg_mr(*end.pd, memory, 8, IBV_ACCESS_ZERO_BASED).error().code, EOPNOTSUPP);
}

TEST(VerbsContext, CreationChecksItsArguments) {
  End end;
  EXPECT_EQ(end.device->create_cq(0, nullptr, nullptr, 0).error().code, EINVAL);
  EXPECT_EQ(end.device->create_cq(8, nullptr, nullptr, 1).error().code, EINVAL);
  ibv_qp_init_attr attr{};
  attr.qp_type = IBV_QPT_RC;
  EXPECT_EQ(end.device->create_qp(*end.pd, attr).error().code, EINVAL) << "no completion queues";
  attr.send_cq = attr.recv_cq = end.cq.get();
  attr.cap.max_send_wr = 1 << 30;
  EXPECT_EQ(end.device->create_qp(*end.pd, attr).error().code, EINVAL);
  attr.cap.max_send_wr = 1;
  EXPECT_TRUE(end.device->create_qp(*end.pd, attr));
  EXPECT_EQ(attr.cap.max_inline_data, end.device->traits().max_inline_data);
}

}  // namespace
}  // namespace ringsock::soft::testing
