/*
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * insn_split - TCG plugin that counts guest instructions, kernel and user apart, between marks that
 * the guest sets.
 *
 *   -plugin insn_split.so[,profile=FILE]
 *
 * A mark is the 8-byte no-operation `nopl ID(%rax,%rax,1)` whose displacement ID is 0x6e647000 plus
 * the number of the mark. Each time one is executed a line is logged (-d plugin -D FILE):
 *
 *   mark NUMBER kernel INSTRUCTIONS user INSTRUCTIONS
 *
 * with the totals since power-on, and a last one at exit, `end kernel ... user ...`, whose sum is
 * what QEMU's own libinsn.so,inline=on counts in the same run. An instruction belongs to the kernel
 * when its address is in the upper half. With profile=FILE, kernel instructions executed between the
 * first mark 1 and the next mark are counted by address, too, and FILE gets lines "ADDRESS COUNT" at
 * exit (see insn-top.py); that is for finding where instructions go, and slower.
 *
 * One vCPU only (the counts are not locked), which is what -icount gives. Interface: QEMU's
 * docs/devel/tcg-plugins.rst, include/qemu/qemu-plugin.h.
 */
#include <glib.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "qemu-plugin.h"

#define MARK_BYTES 8
#define MARK_ID 0x6e6470u
#define PROFILE_SLOTS (1u << 21)

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

struct counts {
	uint64_t kernel;
	uint64_t user;
};

struct profile_counts {
	uint64_t by_slot[PROFILE_SLOTS];
};

static struct qemu_plugin_scoreboard *score;
static qemu_plugin_u64 kernel, user;

static char *profile_path;
static struct qemu_plugin_scoreboard *profile;
static GHashTable *slots;	/* address -> slot + 1 */
static uint64_t *before, *during;

static struct profile_counts *profile_now(void)
{
	return qemu_plugin_scoreboard_find(profile, 0);
}

static void log_counts(const char *what)
{
	g_autofree char *line = g_strdup_printf("%s kernel %" PRIu64 " user %" PRIu64 "\n", what,
						qemu_plugin_u64_sum(kernel),
						qemu_plugin_u64_sum(user));

	qemu_plugin_outs(line);
}

static void at_mark(unsigned int vcpu, void *number)
{
	const unsigned int mark = GPOINTER_TO_UINT(number);
	g_autofree char *what = g_strdup_printf("mark %u", mark);
	size_t i;

	(void)vcpu;
	log_counts(what);
	if (!profile || during)
		return;
	if (mark == 1 && !before) {
		before = g_memdup2(profile_now(), sizeof(struct profile_counts));
	} else if (before) {
		during = g_memdup2(profile_now(), sizeof(struct profile_counts));
		for (i = 0; i < PROFILE_SLOTS; i++)
			during[i] -= before[i];
	}
}

static void count_address(struct qemu_plugin_insn *insn, uint64_t address)
{
	gpointer slot = g_hash_table_lookup(slots, (gpointer)address);
	qemu_plugin_u64 entry = { .score = profile };

	if (!slot) {
		if (g_hash_table_size(slots) >= PROFILE_SLOTS)
			return;
		slot = GUINT_TO_POINTER(g_hash_table_size(slots) + 1);
		g_hash_table_insert(slots, (gpointer)address, slot);
	}
	entry.offset = (GPOINTER_TO_UINT(slot) - 1) * sizeof(uint64_t);
	qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, QEMU_PLUGIN_INLINE_ADD_U64,
							    entry, 1);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	static const uint8_t nopl[4] = { 0x0f, 0x1f, 0x84, 0x00 };
	const size_t n = qemu_plugin_tb_n_insns(tb);
	uint8_t code[MARK_BYTES];
	uint32_t number;
	size_t i;

	(void)id;
	for (i = 0; i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		const uint64_t address = qemu_plugin_insn_vaddr(insn);
		const bool in_kernel = address >> 63;

		qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
			insn, QEMU_PLUGIN_INLINE_ADD_U64, in_kernel ? kernel : user, 1);
		if (profile && in_kernel)
			count_address(insn, address);
		if (in_kernel || qemu_plugin_insn_size(insn) != MARK_BYTES ||
		    qemu_plugin_insn_data(insn, code, MARK_BYTES) != MARK_BYTES ||
		    memcmp(code, nopl, sizeof(nopl)))
			continue;
		memcpy(&number, code + sizeof(nopl), sizeof(number));
		if (number >> 8 == MARK_ID)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, at_mark, QEMU_PLUGIN_CB_NO_REGS,
							       GUINT_TO_POINTER(number & 0xff));
	}
}

static void at_exit(qemu_plugin_id_t id, void *unused)
{
	GHashTableIter iter;
	gpointer address, slot;
	FILE *file;

	(void)id;
	(void)unused;
	log_counts("end");
	if (!profile || !during)
		return;
	file = fopen(profile_path, "w");
	if (!file) {
		perror(profile_path);
		return;
	}
	g_hash_table_iter_init(&iter, slots);
	while (g_hash_table_iter_next(&iter, &address, &slot)) {
		const uint64_t count = during[GPOINTER_TO_UINT(slot) - 1];

		if (count)
			fprintf(file, "%" PRIx64 " %" PRIu64 "\n", (uint64_t)address, count);
	}
	fclose(file);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	int i;

	(void)info;
	for (i = 0; i < argc; i++) {
		if (!g_str_has_prefix(argv[i], "profile=")) {
			fprintf(stderr, "insn_split: the only option is profile=FILE, not %s\n", argv[i]);
			return -1;
		}
		profile_path = g_strdup(argv[i] + strlen("profile="));
	}
	score = qemu_plugin_scoreboard_new(sizeof(struct counts));
	kernel = qemu_plugin_scoreboard_u64_in_struct(score, struct counts, kernel);
	user = qemu_plugin_scoreboard_u64_in_struct(score, struct counts, user);
	if (profile_path) {
		profile = qemu_plugin_scoreboard_new(sizeof(struct profile_counts));
		slots = g_hash_table_new(NULL, NULL);
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, at_exit, NULL);
	return 0;
}
