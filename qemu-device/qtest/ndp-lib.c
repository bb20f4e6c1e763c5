/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: machine, registers, DRAM, queues
 *
 * MSI-X messages are pointed at guest RAM: vector v of DIMM i writes its data
 * to a word of its own, and the test counts by clearing the word.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "libqos/pci-pc.h"
#include "qobject/qdict.h"
#include "standard-headers/linux/pci_regs.h"
#include "ndp-lib.h"

#define MSI_RAM         0x100000
#define MSI_DATA        0x4e445000u
#define FIRST_SLOT      4
#define PORT_BUS(i)     (1 + (i))
#define PORT_WINDOW(i)  (0xc0000000u + (i) * 0x04000000u)
#define PORT_WINDOW_END(i) (PORT_WINDOW(i) + 0x03ffffffu)

static uint64_t msi_address(NdpTestDimm *d, unsigned v)
{
    return MSI_RAM + (d->index * NDP_VECTORS + v) * 4;
}

uint32_t ndp_read(NdpTestDimm *d, unsigned reg)
{
    return qtest_readl(d->qts, d->regs.addr + reg);
}

uint64_t ndp_read64(NdpTestDimm *d, unsigned reg)
{
    return qtest_readq(d->qts, d->regs.addr + reg);
}

void ndp_write(NdpTestDimm *d, unsigned reg, uint32_t val)
{
    qtest_writel(d->qts, d->regs.addr + reg, val);
}

void ndp_write64(NdpTestDimm *d, unsigned reg, uint64_t val)
{
    qtest_writeq(d->qts, d->regs.addr + reg, val);
}

/* In pieces: what libqtest needs for a reply is quadratic in its length. */
void ndp_dram_read(NdpTestDimm *d, uint64_t off, void *buf, size_t bytes)
{
    size_t done;

    for (done = 0; done < bytes; done += 0x8000) {
        qtest_bufread(d->qts, d->dram.addr + off + done,
                      (char *)buf + done, MIN(bytes - done, 0x8000));
    }
}

void ndp_dram_write(NdpTestDimm *d, uint64_t off, const void *buf,
                    size_t bytes)
{
    qtest_bufwrite(d->qts, d->dram.addr + off, buf, bytes);
}

void ndp_dram_set(NdpTestDimm *d, uint64_t off, uint8_t val, size_t bytes)
{
    qtest_memset(d->qts, d->dram.addr + off, val, bytes);
}

void ndp_queue_start(NdpTestDimm *d, unsigned q, unsigned log2)
{
    NdpTestQueue *tq = &d->q[q];

    *tq = (NdpTestQueue) { .log2 = log2, .phase = 1, .cid = q * 0x1000 };
    ndp_write(d, NDP_REG_Q(q, NDP_Q_ENABLE), 0);
    ndp_dram_set(d, d->rsvd + NDP_TEST_SQ(q), 0, 64u << log2);
    ndp_dram_set(d, d->rsvd + NDP_TEST_CQ(q), 0, 32u << log2);
    ndp_write64(d, NDP_REG_Q(q, NDP_Q_SQ_BASE), d->rsvd + NDP_TEST_SQ(q));
    ndp_write64(d, NDP_REG_Q(q, NDP_Q_CQ_BASE), d->rsvd + NDP_TEST_CQ(q));
    ndp_write(d, NDP_REG_Q(q, NDP_Q_SIZE_LOG2), log2);
    ndp_write(d, NDP_REG_Q(q, NDP_Q_ENABLE), 1);
    g_assert_cmpuint(ndp_read(d, NDP_REG_Q(q, NDP_Q_ENABLE)), ==, 1);
}

void ndp_irq_mask(NdpTestDimm *d, unsigned v, bool masked)
{
    uint64_t entry = d->pci->msix_table_off + v * PCI_MSIX_ENTRY_SIZE;

    qpci_io_writel(d->pci, d->pci->msix_table_bar,
                   entry + PCI_MSIX_ENTRY_VECTOR_CTRL,
                   masked ? PCI_MSIX_ENTRY_CTRL_MASKBIT : 0);
}

static void start_msix(NdpTestDimm *d)
{
    unsigned v;

    for (v = 0; v < NDP_VECTORS; v++) {
        uint64_t entry = d->pci->msix_table_off + v * PCI_MSIX_ENTRY_SIZE;

        qtest_writel(d->qts, msi_address(d, v), 0);
        qpci_io_writel(d->pci, d->pci->msix_table_bar,
                       entry + PCI_MSIX_ENTRY_LOWER_ADDR, msi_address(d, v));
        qpci_io_writel(d->pci, d->pci->msix_table_bar,
                       entry + PCI_MSIX_ENTRY_UPPER_ADDR, 0);
        qpci_io_writel(d->pci, d->pci->msix_table_bar,
                       entry + PCI_MSIX_ENTRY_DATA, MSI_DATA + v);
        ndp_irq_mask(d, v, false);
    }
}

void ndp_dimm_start(NdpTestDimm *d)
{
    unsigned q;

    start_msix(d);
    for (q = 0; q < NDP_QUEUES; q++) {
        ndp_queue_start(d, q, NDP_TEST_LOG2);
    }
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_ENABLE);
}

void ndp_test_map(NdpTest *t, unsigned i)
{
    NdpTestDimm *d = &t->dimm[i];
    int devfn = QPCI_DEVFN(FIRST_SLOT + i, 0);

    if (t->behind_ports) {
        devfn = PORT_BUS(i) << 8;
        t->bus->mmio_alloc_ptr = PORT_WINDOW(i);
    }
    d->qts = t->qts;
    d->index = i;
    d->pci = qpci_device_find(t->bus, devfn);
    g_assert_nonnull(d->pci);
    d->dram = qpci_iomap(d->pci, NDP_BAR_DRAM, NULL);
    d->regs = qpci_iomap(d->pci, NDP_BAR_REGS, NULL);
    qpci_device_enable(d->pci);
    qpci_msix_enable(d->pci);
    d->rsvd = ndp_read64(d, NDP_REG_RSVD_OFF);
    ndp_dimm_start(d);
}

QPCIDevice *ndp_test_port(NdpTest *t, unsigned i)
{
    QPCIDevice *port = qpci_device_find(t->bus,
                                        QPCI_DEVFN(FIRST_SLOT + i, 0));

    g_assert_nonnull(port);
    return port;
}

/* What firmware does to a bridge: bus numbers and a window. */
static void setup_port(NdpTest *t, unsigned i)
{
    QPCIDevice *port = ndp_test_port(t, i);

    qpci_config_writeb(port, PCI_PRIMARY_BUS, 0);
    qpci_config_writeb(port, PCI_SECONDARY_BUS, PORT_BUS(i));
    qpci_config_writeb(port, PCI_SUBORDINATE_BUS, PORT_BUS(i));
    qpci_config_writew(port, PCI_MEMORY_BASE, PORT_WINDOW(i) >> 16);
    qpci_config_writew(port, PCI_MEMORY_LIMIT, PORT_WINDOW_END(i) >> 16);
    qpci_config_writew(port, PCI_PREF_MEMORY_BASE, 0xfff0);
    qpci_config_writew(port, PCI_PREF_MEMORY_LIMIT, 0);
    qpci_config_writew(port, PCI_COMMAND,
                       PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
    g_free(port);
}

static NdpTest *start(const char *machine, const char *options,
                      bool behind_ports)
{
    NdpTest *t = g_new0(NdpTest, 1);
    g_autoptr(GString) args = g_string_new(
        "-L /usr/share/seabios -L /usr/share/qemu "
        "-M q35 -m 64M -nodefaults ");
    unsigned i;

    g_string_append_printf(args, "%s ", machine ?: "");
    if (behind_ports) {
        g_string_append(args, "-global "
                        "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off ");
    }
    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        g_string_append_printf(args, "-object memory-backend-ram,id=m%u,"
                               "size=%u ", i, NDP_TEST_DRAM);
        if (behind_ports) {
            g_string_append_printf(args, "-device pcie-root-port,id=p%u,"
                                   "chassis=%u,slot=%u,addr=%u.0 ", i, i + 1,
                                   i + 1, FIRST_SLOT + i);
        }
        g_string_append_printf(args, "-device ndp-dimm,id=d%u,memdev=m%u,"
                               "node=%u,domain=" NDP_TEST_DOMAIN, i, i, i);
        if (behind_ports) {
            g_string_append_printf(args, ",bus=p%u", i);
        } else {
            g_string_append_printf(args, ",addr=%u.0", FIRST_SLOT + i);
        }
        g_string_append_printf(args, "%s%s ", options ? "," : "",
                               options ?: "");
    }
    t->qts = qtest_init(args->str);
    t->bus = qpci_new_pc(t->qts, NULL);
    t->behind_ports = behind_ports;
    for (i = 0; behind_ports && i < NDP_TEST_DIMMS; i++) {
        setup_port(t, i);
    }
    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        ndp_test_map(t, i);
    }
    return t;
}

NdpTest *ndp_test_start(const char *machine, const char *options)
{
    return start(machine, options, false);
}

void ndp_test_unplug(NdpTest *t, unsigned i)
{
    g_autofree char *id = g_strdup_printf("d%u", i);
    g_autofree QPCIDevice *port = ndp_test_port(t, i);
    uint8_t cap = qpci_find_capability(port, PCI_CAP_ID_EXP, 0);

    qtest_qmp_device_del_send(t->qts, id);
    qpci_config_writew(port, cap + PCI_EXP_SLTCTL,
                       PCI_EXP_SLTCTL_PWR_OFF | PCI_EXP_SLTCTL_PWR_IND_OFF);
    qtest_qmp_eventwait(t->qts, "DEVICE_DELETED");
    g_free(t->dimm[i].pci);
    t->dimm[i].pci = NULL;
}

void ndp_test_plug(NdpTest *t, unsigned i)
{
    g_autofree char *id = g_strdup_printf("d%u", i);
    g_autofree char *mem = g_strdup_printf("m%u", i);
    g_autofree char *bus = g_strdup_printf("p%u", i);
    g_autofree QPCIDevice *port = ndp_test_port(t, i);
    uint8_t cap = qpci_find_capability(port, PCI_CAP_ID_EXP, 0);

    qtest_qmp_assert_success(t->qts, "{ 'execute': 'device_add', 'arguments':"
                             " { 'driver': 'ndp-dimm', 'id': %s, 'memdev': "
                             "%s, 'bus': %s, 'node': %u, 'domain': %s } }",
                             id, mem, bus, i, NDP_TEST_DOMAIN);
    qpci_config_writew(port, cap + PCI_EXP_SLTCTL,
                       PCI_EXP_SLTCTL_PWR_ON | PCI_EXP_SLTCTL_PWR_IND_ON);
    ndp_test_map(t, i);
}

NdpTest *ndp_test_start_behind_ports(const char *options)
{
    return start(NULL, options, true);
}

void ndp_test_stop(NdpTest *t)
{
    unsigned i;

    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        g_free(t->dimm[i].pci);
    }
    qpci_free_pc(t->bus);
    qtest_quit(t->qts);
    g_free(t);
}

uint16_t ndp_push(NdpTestDimm *d, unsigned q, struct ndp_hw_cmd cmd)
{
    NdpTestQueue *tq = &d->q[q];
    uint64_t at = d->rsvd + NDP_TEST_SQ(q) + tq->tail * sizeof(cmd);

    cmd.cid = cpu_to_le16(++tq->cid);
    ndp_dram_write(d, at, &cmd, sizeof(cmd));
    tq->tail = (tq->tail + 1) & ((1u << tq->log2) - 1);
    return tq->cid;
}

void ndp_ring(NdpTestDimm *d, unsigned q)
{
    ndp_write(d, NDP_REG_Q(q, NDP_Q_DOORBELL), d->q[q].tail);
}

bool ndp_poll(NdpTestDimm *d, unsigned q, struct ndp_hw_cpl *cpl)
{
    NdpTestQueue *tq = &d->q[q];
    uint64_t at = d->rsvd + NDP_TEST_CQ(q) + tq->cq_head * sizeof(*cpl);
    uint32_t phase;

    phase = qtest_readl(d->qts, d->dram.addr + at +
                        offsetof(struct ndp_hw_cpl, phase));
    if (phase != tq->phase) {
        return false;
    }
    ndp_dram_read(d, at, cpl, sizeof(*cpl));
    tq->cq_head = (tq->cq_head + 1) & ((1u << tq->log2) - 1);
    if (tq->cq_head == 0) {
        tq->phase ^= 3;
    }
    return true;
}

void ndp_wait(NdpTestDimm *d, unsigned q, struct ndp_hw_cpl *cpl)
{
    ndp_wait_for(ndp_poll(d, q, cpl));
}

void ndp_expect_silence(NdpTestDimm *d, unsigned q)
{
    struct ndp_hw_cpl cpl;
    int i;

    for (i = 0; i < 20; i++) {
        g_assert_false(ndp_poll(d, q, &cpl));
        g_usleep(5000);
    }
}

uint32_t ndp_run(NdpTestDimm *d, unsigned q, struct ndp_hw_cmd cmd)
{
    struct ndp_hw_cpl cpl;
    uint16_t cid = ndp_push(d, q, cmd);

    ndp_ring(d, q);
    ndp_wait(d, q, &cpl);
    g_assert_cmpuint(le16_to_cpu(cpl.cid), ==, cid);
    g_assert_cmpuint(le32_to_cpu(cpl.generation), ==,
                     ndp_read(d, NDP_REG_GENERATION));
    g_assert_cmpuint(le16_to_cpu(cpl.sq_head), ==, d->q[q].tail);
    g_assert_cmpuint(cpl.rsvd[0] | cpl.rsvd[1], ==, 0);
    return le32_to_cpu(cpl.status);
}

bool ndp_irq_seen(NdpTestDimm *d, unsigned v)
{
    uint32_t data = qtest_readl(d->qts, msi_address(d, v));

    if (!data) {
        return false;
    }
    g_assert_cmphex(data, ==, MSI_DATA + v);
    qtest_writel(d->qts, msi_address(d, v), 0);
    return true;
}

void ndp_irq_wait(NdpTestDimm *d, unsigned v)
{
    ndp_wait_for(ndp_irq_seen(d, v));
}

void ndp_set(NdpTestDimm *d, const char *property, uint64_t val)
{
    g_autofree char *path = g_strdup_printf("d%u", d->index);

    qtest_qmp_assert_success(d->qts, "{ 'execute': 'qom-set', 'arguments': {"
                             " 'path': %s, 'property': %s, 'value': %" PRIu64
                             " } }", path, property, val);
}

void ndp_set_bool(NdpTestDimm *d, const char *property, bool val)
{
    g_autofree char *path = g_strdup_printf("d%u", d->index);

    qtest_qmp_assert_success(d->qts, "{ 'execute': 'qom-set', 'arguments': {"
                             " 'path': %s, 'property': %s, 'value': %i } }",
                             path, property, val);
}

uint64_t ndp_get(NdpTestDimm *d, const char *property)
{
    g_autofree char *path = g_strdup_printf("d%u", d->index);
    QDict *r = qtest_qmp(d->qts, "{ 'execute': 'qom-get', 'arguments': {"
                         " 'path': %s, 'property': %s } }", path, property);
    uint64_t val = qdict_get_int(r, "return");

    qobject_unref(r);
    return val;
}

uint32_t ndp_float_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    return cpu_to_le32(bits);
}

const struct ndp_hw_cmd ndp_test_gemv = {
    .opcode = NDP_OP_GEMV,
    .w = const_le64(NDP_TEST_W),
    .x = const_le64(NDP_TEST_X),
    .y = const_le64(NDP_TEST_Y),
    .count = const_le32(2),
    .tokens = const_le32(3),
    .h_in = const_le16(100),
    .h_out = const_le16(50),
    .ldx64 = const_le16(5),
    .ldy64 = const_le16(4),
};

struct ndp_hw_cmd ndp_test_ffn(unsigned neurons, unsigned h_in,
                               unsigned h_out, unsigned tokens)
{
    return (struct ndp_hw_cmd) {
        .opcode = NDP_OP_FFN,
        .w = cpu_to_le64(NDP_TEST_W),
        .x = cpu_to_le64(NDP_TEST_X),
        .y = cpu_to_le64(NDP_TEST_Y),
        .count = cpu_to_le32(QEMU_ALIGN_UP(neurons, 32) / 32),
        .tokens = cpu_to_le32(tokens),
        .h_in = cpu_to_le16(h_in),
        .h_out = cpu_to_le16(h_out),
        .ldx64 = cpu_to_le16(8),
        .ldy64 = cpu_to_le16(16),
    };
}
