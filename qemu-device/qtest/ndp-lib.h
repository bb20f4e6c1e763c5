/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: machine, registers, DRAM, queues
 *
 * A test drives the device as a driver would: through BARs and MSI-X, with
 * messages that land in the guest's RAM where they can be looked at.
 */
#ifndef NDP_LIB_H
#define NDP_LIB_H

#include "libqtest.h"
#include "libqos/pci.h"
#include "hw/ndp/ndp_regs.h"

#define NDP_TEST_DRAM   (32u << 20)
#define NDP_TEST_DIMMS  3
#define NDP_TEST_LOG2   3
#define NDP_TEST_WAIT_S 20

/* Where the operands of test commands lie. */
#define NDP_TEST_W      0x100000u
#define NDP_TEST_X      0x800000u
#define NDP_TEST_UP     0x900000u
#define NDP_TEST_ROWS   0x9f0000u
#define NDP_TEST_Y      0xa00000u

#define NDP_TEST_DOMAIN "6e647064-0000-4000-8000-000000000001"

/* Where the rings of queue q lie, from the start of the reserved area. */
#define NDP_TEST_SQ(q)  ((q) * 0x20000)
#define NDP_TEST_CQ(q)  ((q) * 0x20000 + 0x10000)

typedef struct NdpTestQueue {
    unsigned log2;
    uint32_t tail;
    uint32_t cq_head;
    uint32_t phase;
    uint16_t cid;
} NdpTestQueue;

typedef struct NdpTestDimm {
    QTestState *qts;
    QPCIDevice *pci;
    QPCIBar regs;
    QPCIBar dram;
    unsigned index;
    uint64_t rsvd;
    NdpTestQueue q[NDP_QUEUES];
} NdpTestDimm;

typedef struct NdpTest {
    QTestState *qts;
    QPCIBus *bus;
    bool behind_ports;
    NdpTestDimm dimm[NDP_TEST_DIMMS];
} NdpTest;

/*
 * Starts a machine whose DIMMs are nodes 0.. of one domain, with @options (may
 * be NULL) added to each -device and @machine (may be NULL) to the command
 * line; maps, resets and enables them.
 */
NdpTest *ndp_test_start(const char *machine, const char *options);
/* The same, each DIMM behind a root port, so that it can be unplugged. */
NdpTest *ndp_test_start_behind_ports(const char *options);
void ndp_test_stop(NdpTest *t);
QPCIDevice *ndp_test_port(NdpTest *t, unsigned i);
/* Takes DIMM @i out as a guest does, and waits until it is gone. */
void ndp_test_unplug(NdpTest *t, unsigned i);
void ndp_test_plug(NdpTest *t, unsigned i);
/* Maps and starts DIMM @i; done by the others, but needed after its reset. */
void ndp_test_map(NdpTest *t, unsigned i);

uint32_t ndp_read(NdpTestDimm *d, unsigned reg);
uint64_t ndp_read64(NdpTestDimm *d, unsigned reg);
void ndp_write(NdpTestDimm *d, unsigned reg, uint32_t val);
void ndp_write64(NdpTestDimm *d, unsigned reg, uint64_t val);

void ndp_dram_read(NdpTestDimm *d, uint64_t off, void *buf, size_t bytes);
void ndp_dram_write(NdpTestDimm *d, uint64_t off, const void *buf,
                    size_t bytes);
void ndp_dram_set(NdpTestDimm *d, uint64_t off, uint8_t val, size_t bytes);

/* Programs the rings with 2^log2 entries and enables queue and device. */
void ndp_queue_start(NdpTestDimm *d, unsigned q, unsigned log2);
/* After a reset: rings, MSI-X, enable. */
void ndp_dimm_start(NdpTestDimm *d);

/* Writes @cmd into the ring under the next cid, which it returns. */
uint16_t ndp_push(NdpTestDimm *d, unsigned q, struct ndp_hw_cmd cmd);
void ndp_ring(NdpTestDimm *d, unsigned q);
/* True if the next completion is there now; takes it. */
bool ndp_poll(NdpTestDimm *d, unsigned q, struct ndp_hw_cpl *cpl);
/* Waits for the next completion; fails the test if it does not come. */
void ndp_wait(NdpTestDimm *d, unsigned q, struct ndp_hw_cpl *cpl);
/* Fails the test if a completion comes within a tenth of a second. */
void ndp_expect_silence(NdpTestDimm *d, unsigned q);
/* Push, ring, wait; checks cid and generation, returns the status. */
uint32_t ndp_run(NdpTestDimm *d, unsigned q, struct ndp_hw_cmd cmd);

/* True if vector @v has sent a message since the last call. */
bool ndp_irq_seen(NdpTestDimm *d, unsigned v);
void ndp_irq_wait(NdpTestDimm *d, unsigned v);
void ndp_irq_mask(NdpTestDimm *d, unsigned v, bool masked);

void ndp_set(NdpTestDimm *d, const char *property, uint64_t val);
void ndp_set_bool(NdpTestDimm *d, const char *property, bool val);
uint64_t ndp_get(NdpTestDimm *d, const char *property);

uint32_t ndp_float_bits(float f);
/* A GEMV whose K, rows and strides fit nothing evenly: 50 rows of 100. */
extern const struct ndp_hw_cmd ndp_test_gemv;
/* An FFN with rows of x 512 and of y 1024 bytes apart. */
struct ndp_hw_cmd ndp_test_ffn(unsigned neurons, unsigned h_in,
                               unsigned h_out, unsigned tokens);

/* Waits until an expression is true; fails the test if it stays false. */
#define ndp_wait_for(expr) do { \
    int64_t end_ = g_get_monotonic_time() + \
                   NDP_TEST_WAIT_S * G_TIME_SPAN_SECOND; \
    while (!(expr)) { \
        g_assert_cmpint(g_get_monotonic_time(), <, end_); \
        g_usleep(200); \
    } \
} while (0)

/* Groups of tests, one a file. */
void ndp_add_register_tests(void);
void ndp_add_command_tests(void);
void ndp_add_bad_command_tests(void);
void ndp_add_link_tests(void);
void ndp_add_fault_tests(void);
void ndp_add_reset_tests(void);
void ndp_add_icount_tests(void);

#endif
