// SPDX-License-Identifier: GPL-2.0-only
/*
 * main.c - the module and its PCI driver: what happens when a DIMM comes, goes,
 * is reset by the PCI core or asked to sleep.
 */
#include <linux/module.h>
#include <linux/pm.h>

#include "ndp.h"

#if IS_ENABLED(CONFIG_KASAN) || IS_ENABLED(CONFIG_PROVE_LOCKING)
#define NDP_TIMEOUT_MS		300000
#else
#define NDP_TIMEOUT_MS		30000
#endif

unsigned int ndp_timeout_ms = NDP_TIMEOUT_MS;
struct workqueue_struct *ndp_wq;

static int ndp_timeout_set(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, 10, 3600000);
}

static const struct kernel_param_ops ndp_timeout_ops = {
	.set = ndp_timeout_set,
	.get = param_get_uint,
};

module_param_cb(timeout_ms, &ndp_timeout_ops, &ndp_timeout_ms, 0644);
MODULE_PARM_DESC(timeout_ms,
		 "an engine that has work and completes nothing for this long is reset, and a reset may take this long (10..3600000)");

/* The link changed, or the DIMM says that it is broken. */
static void ndp_event_work(struct work_struct *work)
{
	struct ndp_dimm *dimm = container_of(work, struct ndp_dimm, event_work);
	u32 events = 0, status = 0;

	if (ndp_hw_enter(dimm)) {
		events = ndp_hw_read32(dimm, NDP_REG_EVENT);
		if (events != U32_MAX)
			writel(events, dimm->regs + NDP_REG_EVENT);
		status = ndp_hw_read32(dimm, NDP_REG_STATUS);
		ndp_hw_exit(dimm);
	}
	if (!events)
		return;
	if (events == U32_MAX || status == U32_MAX) {
		ndp_dimm_failed(dimm);
		return;
	}
	if (events & NDP_EVENT_LINK) {
		dev_info(&dimm->pdev->dev, "DIMM-Link %s, peers %#x\n",
			 status & NDP_STATUS_LINK_UP ? "up" : "down",
			 ndp_hw_peers(dimm));
		if (dimm->registered)
			kobject_uevent(&dimm->node.dev.kobj, KOBJ_CHANGE);
	}
	if (events & NDP_EVENT_FATAL) {
		dev_err(&dimm->pdev->dev, "reports a fatal error, resetting it\n");
		ndp_dimm_reset(dimm, NDP_NO_QUEUE);
	}
}

static int ndp_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct ndp_dimm *dimm;
	int r;

	dimm = ndp_dimm_alloc(pdev);
	if (!dimm)
		return -ENOMEM;
	INIT_WORK(&dimm->event_work, ndp_event_work);
	r = ndp_hw_map(dimm);
	if (r < 0)
		goto err_put;
	ndp_mm_init(dimm, dimm->caps.rsvd_off);
	r = ndp_domain_add_dimm(dimm);
	if (r < 0)
		goto err_unmap;
	r = ndp_hw_irq_init(dimm);
	if (r < 0)
		goto err_domain;
	r = ndp_dimm_start(dimm);
	if (r < 0)
		goto err_irq;
	ndp_counters_base(dimm);
	r = ndp_dimm_register(dimm);
	if (r < 0)
		goto err_stop;
	ndp_debugfs_add(dimm);
	pci_set_drvdata(pdev, dimm);
	dev_info(&pdev->dev, "ndp%dd%u: %llu MiB, domain %pUb%s\n",
		 dimm->node.domain->id, dimm->id, dimm->caps.rsvd_off >> 20,
		 dimm->caps.domain, dimm->coherent ? "" : ", not coherent");
	return 0;

err_stop:
	ndp_dimm_stop(dimm);
err_irq:
	ndp_hw_irq_exit(dimm);
	cancel_work_sync(&dimm->event_work);
err_domain:
	ndp_domain_del_dimm(dimm);
err_unmap:
	ndp_hw_unmap(dimm);
err_put:
	ndp_dimm_put(dimm);
	return r;
}

/*
 * First everybody learns that the DIMM has gone; then its node and its place
 * in the domain go; the structure stays for those who still refer to it.
 */
static void ndp_remove(struct pci_dev *pdev)
{
	struct ndp_dimm *dimm = pci_get_drvdata(pdev);

	ndp_debugfs_del(dimm);
	ndp_dimm_stop(dimm);
	ndp_hw_irq_exit(dimm);
	cancel_work_sync(&dimm->event_work);
	ndp_dimm_unregister(dimm);
	ndp_domain_del_dimm(dimm);
	ndp_hw_unmap(dimm);
	ndp_dimm_put(dimm);
}

static pci_ers_result_t ndp_error_detected(struct pci_dev *pdev,
					   pci_channel_state_t state)
{
	ndp_dimm_failed(pci_get_drvdata(pdev));
	return state == pci_channel_io_perm_failure ?
	       PCI_ERS_RESULT_DISCONNECT : PCI_ERS_RESULT_NEED_RESET;
}

static pci_ers_result_t ndp_slot_reset(struct pci_dev *pdev)
{
	pci_restore_state(pdev);
	pci_save_state(pdev);
	return ndp_dimm_reset(pci_get_drvdata(pdev), NDP_NO_QUEUE) < 0 ?
	       PCI_ERS_RESULT_DISCONNECT : PCI_ERS_RESULT_RECOVERED;
}

static void ndp_reset_prepare(struct pci_dev *pdev)
{
	ndp_dimm_reset_prepare(pci_get_drvdata(pdev));
}

static void ndp_reset_done(struct pci_dev *pdev)
{
	ndp_dimm_reset_done(pci_get_drvdata(pdev));
}

static const struct pci_error_handlers ndp_error_handlers = {
	.error_detected = ndp_error_detected,
	.slot_reset = ndp_slot_reset,
	.reset_prepare = ndp_reset_prepare,
	.reset_done = ndp_reset_done,
};

/* Sleep may take the memory's power: only a DIMM that holds nothing may. */
static int ndp_suspend(struct device *dev)
{
	struct ndp_dimm *dimm = dev_get_drvdata(dev);
	struct ndp_mm_stats stats;

	ndp_mm_stats(dimm, &stats);
	if (stats.extents) {
		dev_err(dev, "holds %u extents of objects that sleep would lose: end their users first\n",
			stats.extents);
		return -EBUSY;
	}
	ndp_dimm_suspend(dimm);
	return 0;
}

/* A DIMM that does not wake up has failed; that is no reason not to resume. */
static int ndp_resume(struct device *dev)
{
	ndp_dimm_reset(dev_get_drvdata(dev), NDP_NO_QUEUE);
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(ndp_pm_ops, ndp_suspend, ndp_resume);

static const struct pci_device_id ndp_ids[] = {
	{ PCI_DEVICE(NDP_PCI_VENDOR_ID, NDP_PCI_DEVICE_ID) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ndp_ids);

static struct pci_driver ndp_driver = {
	.name = NDP_NAME,
	.id_table = ndp_ids,
	.probe = ndp_probe,
	.remove = ndp_remove,
	.err_handler = &ndp_error_handlers,
	.driver.pm = pm_sleep_ptr(&ndp_pm_ops),
};

static int __init ndp_init(void)
{
	int r;

	BUILD_BUG_ON(sizeof(struct ndp_hw_cmd) != 64);
	BUILD_BUG_ON(sizeof(struct ndp_hw_cpl) != 32);
	BUILD_BUG_ON(sizeof(struct moendp_cmd) != 80);
	BUILD_BUG_ON(sizeof(struct moendp_cmd_migrate) != 80);

	r = ndp_req_cache_init();
	if (r < 0)
		return r;
	ndp_wq = alloc_workqueue(NDP_NAME, WQ_UNBOUND, 0);
	if (!ndp_wq) {
		r = -ENOMEM;
		goto err_cache;
	}
	r = ndp_domains_init();
	if (r < 0)
		goto err_wq;
	ndp_debugfs_init();
	r = pci_register_driver(&ndp_driver);
	if (r < 0)
		goto err_domains;
	return 0;

err_domains:
	ndp_debugfs_exit();
	ndp_domains_exit();
err_wq:
	destroy_workqueue(ndp_wq);
err_cache:
	ndp_req_cache_exit();
	return r;
}

static void __exit ndp_exit(void)
{
	pci_unregister_driver(&ndp_driver);
	/* Requests and migrations that nobody waits for hold domains. */
	flush_workqueue(ndp_wq);
	ndp_debugfs_exit();
	ndp_domains_exit();
	destroy_workqueue(ndp_wq);
	ndp_req_cache_exit();
}

module_init(ndp_init);
module_exit(ndp_exit);

MODULE_DESCRIPTION("Near-data-processing DIMMs that compute Mixture-of-Experts layers");
MODULE_AUTHOR("The moendp developers");
MODULE_LICENSE("GPL");
