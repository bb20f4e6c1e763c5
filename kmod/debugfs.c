// SPDX-License-Identifier: GPL-2.0-only
/*
 * debugfs.c - moendp/ndpNdK/queues: what each ring of a DIMM is doing.
 *
 * For people; nothing may depend on its format.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "ndp.h"

static struct dentry *ndp_debugfs_root;

static void ndp_queue_show(struct seq_file *m, struct ndp_queue *q)
{
	static const char * const names[] = {
		[NDP_Q_COMPUTE] = "compute",
		[NDP_Q_LINK] = "link",
	};
	const struct ndp_part *part;
	u32 inflight = 0;

	spin_lock_irq(&q->lock);
	list_for_each_entry(part, &q->inflight, link)
		inflight++;
	seq_printf(m, "%s: %s, generation %u\n", names[q->id],
		   q->dead ? "dead" : q->running ? "running" : "stopped",
		   q->generation);
	seq_printf(m, "  inflight %u waiting %u flows %s\n", inflight,
		   q->nr_waiting, list_empty(&q->flows) ? "none" : "some");
	seq_printf(m, "  tail %u head %u phase %u\n", q->tail, q->head,
		   q->phase);
	seq_printf(m, "  issued %llu completed %llu spurious %llu lost_irqs %llu\n",
		   q->issued, q->completed, q->spurious, q->lost_irqs);
	list_for_each_entry(part, &q->inflight, link)
		seq_printf(m, "  cid %u opcode %u tokens %u count %u\n",
			   part->cid, part->cmd.opcode,
			   le32_to_cpu(part->cmd.tokens),
			   le32_to_cpu(part->cmd.count));
	spin_unlock_irq(&q->lock);
}

static int queues_show(struct seq_file *m, void *data)
{
	struct ndp_dimm *dimm = m->private;
	unsigned int i;

	for (i = 0; i < NDP_QUEUES; i++)
		ndp_queue_show(m, &dimm->queue[i]);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(queues);

void ndp_debugfs_init(void)
{
	ndp_debugfs_root = debugfs_create_dir(NDP_NAME, NULL);
}

void ndp_debugfs_exit(void)
{
	debugfs_remove_recursive(ndp_debugfs_root);
}

void ndp_debugfs_add(struct ndp_dimm *dimm)
{
	dimm->debugfs = debugfs_create_dir(dev_name(&dimm->node.dev),
					   ndp_debugfs_root);
	debugfs_create_file("queues", 0400, dimm->debugfs, dimm, &queues_fops);
}

void ndp_debugfs_del(struct ndp_dimm *dimm)
{
	debugfs_remove_recursive(dimm->debugfs);
}
