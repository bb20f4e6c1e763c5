// SPDX-License-Identifier: GPL-2.0-only
/*
 * hw.c - a DIMM's registers and memory window: mapping them, reading what the
 * DIMM is, resetting it, switching its queues on.
 *
 * Nothing here knows of requests.  Registers that read as all ones mean that
 * the DIMM has gone.  Facts: ndp_regs.h, docs/hardware.md.
 */
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/log2.h>
#include <linux/sizes.h>

#include "ndp.h"

bool ndp_hw_enter(struct ndp_dimm *dimm)
{
	down_read(&dimm->hw_sem);
	if (!dimm->hw_gone)
		return true;
	up_read(&dimm->hw_sem);
	return false;
}

void ndp_hw_exit(struct ndp_dimm *dimm)
{
	up_read(&dimm->hw_sem);
}

u32 ndp_hw_read32(const struct ndp_dimm *dimm, u32 reg)
{
	return readl(dimm->regs + reg);
}

u64 ndp_hw_read64(const struct ndp_dimm *dimm, u32 reg)
{
	return readq(dimm->regs + reg);
}

static void ndp_hw_write32(struct ndp_dimm *dimm, u32 reg, u32 value)
{
	writel(value, dimm->regs + reg);
}

static void ndp_hw_write64(struct ndp_dimm *dimm, u32 reg, u64 value)
{
	writeq(value, dimm->regs + reg);
}

bool ndp_hw_responds(struct ndp_dimm *dimm)
{
	return ndp_hw_read32(dimm, NDP_REG_MAGIC) == NDP_MAGIC;
}

u32 ndp_hw_peers(struct ndp_dimm *dimm)
{
	u32 peers = 0;

	if (ndp_hw_enter(dimm)) {
		if (ndp_hw_responds(dimm))
			peers = ndp_hw_read32(dimm, NDP_REG_PEERS);
		ndp_hw_exit(dimm);
	}
	return peers;
}

/* Reads what the DIMM says it is and refuses what the driver cannot drive. */
static int ndp_hw_identify(struct ndp_dimm *dimm)
{
	struct device *dev = &dimm->pdev->dev;
	struct ndp_caps *caps = &dimm->caps;
	u64 window = pci_resource_len(dimm->pdev, NDP_BAR_DRAM);
	u32 magic = ndp_hw_read32(dimm, NDP_REG_MAGIC);
	u32 version = ndp_hw_read32(dimm, NDP_REG_VERSION);
	__le64 uuid[2];
	u64 rings;

	if (magic != NDP_MAGIC) {
		dev_err(dev, "no NDP DIMM: magic is %#x, not %#x\n", magic,
			NDP_MAGIC);
		return -ENODEV;
	}
	if (version >> 16 != NDP_VERSION >> 16) {
		dev_err(dev, "interface version %u.%u, this driver knows %u.x: use a driver that fits\n",
			version >> 16, version & 0xffff, NDP_VERSION >> 16);
		return -EPROTONOSUPPORT;
	}
	dimm->id = ndp_hw_read32(dimm, NDP_REG_NODE);
	if (dimm->id >= NDP_MAX_NODES) {
		dev_err(dev, "node id %u, wanted 0..%u\n", dimm->id,
			NDP_MAX_NODES - 1);
		return -EINVAL;
	}
	caps->caps = ndp_hw_read32(dimm, NDP_REG_CAP);
	caps->max_tokens = min_t(u32, NDP_MAX_TOKENS,
				 ndp_hw_read32(dimm, NDP_REG_MAX_TOKENS));
	caps->max_copy = min_t(u32, NDP_MAX_COPY_BYTES,
			       ndp_hw_read32(dimm, NDP_REG_MAX_COPY));
	caps->max_copy = ALIGN_DOWN(caps->max_copy, PAGE_SIZE);
	caps->internal_mbps = ndp_hw_read32(dimm, NDP_REG_INTERNAL_MBPS);
	caps->gflops = ndp_hw_read32(dimm, NDP_REG_GFLOPS);
	caps->link_mbps = ndp_hw_read32(dimm, NDP_REG_LINK_MBPS);
	caps->overhead_ns = ndp_hw_read32(dimm, NDP_REG_OVERHEAD_NS);
	caps->link_latency_ns = ndp_hw_read32(dimm, NDP_REG_LINK_LATENCY_NS);
	caps->mem_size = ndp_hw_read64(dimm, NDP_REG_MEM_SIZE);
	caps->rsvd_off = ndp_hw_read64(dimm, NDP_REG_RSVD_OFF);
	caps->rsvd_size = ndp_hw_read64(dimm, NDP_REG_RSVD_SIZE);
	uuid[0] = cpu_to_le64(ndp_hw_read64(dimm, NDP_REG_DOMAIN_LO));
	uuid[1] = cpu_to_le64(ndp_hw_read64(dimm, NDP_REG_DOMAIN_HI));
	memcpy(caps->domain, uuid, sizeof(caps->domain));

	if (!caps->max_tokens || !caps->max_copy) {
		dev_err(dev, "limits of zero: %u tokens, %u bytes a copy\n",
			caps->max_tokens, caps->max_copy);
		return -EINVAL;
	}
	if (ndp_hw_read32(dimm, NDP_REG_MAX_QUEUE) < NDP_RING_LOG2) {
		dev_err(dev, "rings of at most 2^%u entries, wanted 2^%u\n",
			ndp_hw_read32(dimm, NDP_REG_MAX_QUEUE), NDP_RING_LOG2);
		return -EINVAL;
	}
	rings = NDP_QUEUES * NDP_RING_SIZE *
		(sizeof(struct ndp_hw_cmd) + sizeof(struct ndp_hw_cpl));
	if (caps->mem_size > window || caps->rsvd_size < rings ||
	    caps->rsvd_off < SZ_1M || caps->rsvd_off % PAGE_SIZE ||
	    caps->rsvd_off > caps->mem_size ||
	    caps->rsvd_size > caps->mem_size - caps->rsvd_off) {
		dev_err(dev, "%llu bytes of memory in a window of %llu, %llu reserved at %#llx: cannot hold %llu bytes of rings and 1 MiB of objects\n",
			caps->mem_size, window, caps->rsvd_size, caps->rsvd_off,
			rings);
		return -EINVAL;
	}
	dimm->coherent = caps->caps & NDP_CAP_COHERENT;
	return ndp_coherence_check(dimm);
}

/*
 * The memory is mapped write-back for as long as the driver is bound: that is
 * also what makes x86 give user mappings of it this memory type.
 */
int ndp_hw_map(struct ndp_dimm *dimm)
{
	struct pci_dev *pdev = dimm->pdev;
	int r;

	r = pci_enable_device_mem(pdev);
	if (r < 0)
		return r;
	if (pci_resource_len(pdev, NDP_BAR_REGS) < NDP_REGS_BYTES ||
	    !(pci_resource_flags(pdev, NDP_BAR_DRAM) & IORESOURCE_MEM) ||
	    !pci_resource_start(pdev, NDP_BAR_DRAM)) {
		dev_err(&pdev->dev, "registers (BAR %u) or memory (BAR %u) have no address: reserve 64-bit prefetchable space for the slot\n",
			NDP_BAR_REGS, NDP_BAR_DRAM);
		r = -ENXIO;
		goto err_disable;
	}
	r = pci_request_regions(pdev, NDP_NAME);
	if (r < 0)
		goto err_disable;
	dimm->regs = pci_iomap(pdev, NDP_BAR_REGS, NDP_REGS_BYTES);
	if (!dimm->regs) {
		r = -ENOMEM;
		goto err_release;
	}
	r = ndp_hw_identify(dimm);
	if (r < 0)
		goto err_iounmap;
	dimm->dram_phys = pci_resource_start(pdev, NDP_BAR_DRAM);
	dimm->dram = memremap(dimm->dram_phys, dimm->caps.mem_size, MEMREMAP_WB);
	if (!dimm->dram) {
		dev_err(&pdev->dev, "cannot map %llu bytes of memory write-back\n",
			dimm->caps.mem_size);
		r = -ENOMEM;
		goto err_iounmap;
	}
	/* An MSI-X is a write by the function: it needs to master the bus. */
	pci_set_master(pdev);
	return 0;

err_iounmap:
	pci_iounmap(pdev, dimm->regs);
err_release:
	pci_release_regions(pdev);
err_disable:
	pci_disable_device(pdev);
	return r;
}

void ndp_hw_unmap(struct ndp_dimm *dimm)
{
	down_write(&dimm->hw_sem);
	dimm->hw_gone = true;
	up_write(&dimm->hw_sem);

	pci_clear_master(dimm->pdev);
	memunmap(dimm->dram);
	pci_iounmap(dimm->pdev, dimm->regs);
	pci_release_regions(dimm->pdev);
	pci_disable_device(dimm->pdev);
}

static irqreturn_t ndp_hw_event_irq(int irq, void *data)
{
	struct ndp_dimm *dimm = data;

	queue_work(ndp_wq, &dimm->event_work);
	return IRQ_HANDLED;
}

int ndp_hw_irq_init(struct ndp_dimm *dimm)
{
	struct pci_dev *pdev = dimm->pdev;
	struct ndp_queue *compute = &dimm->queue[NDP_Q_COMPUTE];
	struct ndp_queue *link = &dimm->queue[NDP_Q_LINK];
	int r;

	r = pci_alloc_irq_vectors(pdev, NDP_VECTORS, NDP_VECTORS, PCI_IRQ_MSIX);
	if (r < 0) {
		dev_err(&pdev->dev, "cannot get %u MSI-X vectors: %d\n",
			NDP_VECTORS, r);
		return r;
	}
	r = pci_request_irq(pdev, NDP_VEC_EVENT, ndp_hw_event_irq, NULL, dimm,
			    "moendp-event:%s", pci_name(pdev));
	if (r < 0)
		goto err_vectors;
	r = pci_request_irq(pdev, NDP_VEC_COMPUTE, ndp_queue_irq, NULL, compute,
			    "moendp-compute:%s", pci_name(pdev));
	if (r < 0)
		goto err_event;
	r = pci_request_irq(pdev, NDP_VEC_LINK, ndp_queue_irq, NULL, link,
			    "moendp-link:%s", pci_name(pdev));
	if (r < 0)
		goto err_compute;
	/* With the vectors, for ndp_hw_wait_ready(). */
	pci_save_state(pdev);
	return 0;

err_compute:
	pci_free_irq(pdev, NDP_VEC_COMPUTE, compute);
err_event:
	pci_free_irq(pdev, NDP_VEC_EVENT, dimm);
err_vectors:
	pci_free_irq_vectors(pdev);
	return r;
}

void ndp_hw_irq_exit(struct ndp_dimm *dimm)
{
	struct pci_dev *pdev = dimm->pdev;

	pci_free_irq(pdev, NDP_VEC_LINK, &dimm->queue[NDP_Q_LINK]);
	pci_free_irq(pdev, NDP_VEC_COMPUTE, &dimm->queue[NDP_Q_COMPUTE]);
	pci_free_irq(pdev, NDP_VEC_EVENT, dimm);
	pci_free_irq_vectors(pdev);
}

/* Waits for the end of a reset; engines may first have to notice it. */
int ndp_hw_wait_ready(struct ndp_dimm *dimm)
{
	unsigned long end = jiffies + msecs_to_jiffies(ndp_timeout_ms) + 1;
	unsigned int sleep_us = 20;

	for (;;) {
		bool late = time_after(jiffies, end);
		u32 status = ndp_hw_read32(dimm, NDP_REG_STATUS);

		if (status == U32_MAX)
			return -ENODEV;
		if (!(status & NDP_STATUS_RESETTING)) {
			if (status & NDP_STATUS_FAILED)
				return -EIO;
			if (status & NDP_STATUS_READY)
				break;
		}
		if (late)
			return -ETIMEDOUT;
		usleep_range(sleep_us, 2 * sleep_us);
		sleep_us = min(2 * sleep_us, 10000U);
	}
	/* Only the function's registers are lost, its memory is kept. */
	pci_restore_state(dimm->pdev);
	pci_save_state(dimm->pdev);
	dimm->generation = ndp_hw_read32(dimm, NDP_REG_GENERATION);
	return 0;
}

int ndp_hw_reset(struct ndp_dimm *dimm)
{
	ndp_hw_write32(dimm, NDP_REG_CTRL, NDP_CTRL_RESET);
	return ndp_hw_wait_ready(dimm);
}

/* After ndp_queue_layout() of both queues. */
int ndp_hw_enable(struct ndp_dimm *dimm)
{
	unsigned int i;

	for (i = 0; i < NDP_QUEUES; i++) {
		struct ndp_queue *q = &dimm->queue[i];

		ndp_hw_write64(dimm, NDP_REG_Q(i, NDP_Q_SQ_BASE),
			       (void *)q->sq - dimm->dram);
		ndp_hw_write64(dimm, NDP_REG_Q(i, NDP_Q_CQ_BASE),
			       (void *)q->cq - dimm->dram);
		ndp_hw_write32(dimm, NDP_REG_Q(i, NDP_Q_SIZE_LOG2),
			       NDP_RING_LOG2);
		ndp_hw_write32(dimm, NDP_REG_Q(i, NDP_Q_ENABLE), 1);
		if (ndp_hw_read32(dimm, NDP_REG_Q(i, NDP_Q_ENABLE)) != 1) {
			dev_err(&dimm->pdev->dev, "queue %u was not accepted\n",
				i);
			return -EIO;
		}
	}
	ndp_hw_write32(dimm, NDP_REG_CTRL, NDP_CTRL_ENABLE);
	return 0;
}
