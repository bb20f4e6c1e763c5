// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpctl.c - ndpctl's options, tables, JSON, rates: what needs no daemon and no node.
 */
#include "../../tools/ndpctl/doctor.h"
#include "../../tools/ndpctl/migrate.h"
#include "../../tools/ndpctl/stat.h"
#include "../../tools/ndpctl/top.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---------------------------------------------------------------- */

static const struct command migrate = { .name = "migrate", .usage = "u", .letters = "Cetjs" };
static const struct command info = {
	.name = "info", .usage = "u", .letters = "Du", .json_default = true, .max_rest = 1,
};
static const struct command stat_command = {
	.name = "stat", .usage = "ndpctl stat -- COMMAND", .letters = "DjO", .min_rest = 1,
	.max_rest = -1,
};
static const struct command top = { .name = "top", .usage = "u", .letters = "Ddsoj" };

static int parse(struct options *o, const struct command *c, struct ndp_error *err, ...)
{
	static char *argv[16];
	int argc = 1;
	va_list ap;

	argv[0] = (char *)c->name;
	va_start(ap, err);
	while ((argv[argc] = va_arg(ap, char *)))
		argc++;
	va_end(ap);
	return options_parse(o, c, argc, argv, err);
}

#define REFUSED(c, text, ...)							\
	do {									\
		struct ndp_error e_ = { 0 };					\
		struct options o_;						\
										\
		assert_int_equal(parse(&o_, c, &e_, __VA_ARGS__, NULL), -EINVAL);	\
		if (!strstr(e_.message, text))					\
			fail_msg("\"%s\" does not say \"%s\"", e_.message, text);	\
	} while (0)

static void options_are_read(void **state)
{
	struct ndp_error err;
	struct options o;

	(void)state;
	assert_int_equal(parse(&o, &migrate, &err, "--client", "7", "--expert", "0:3,1:31", "2:0",
			       "--to", "dimm:1", "4095:4095", NULL), 0);
	assert_true(o.has_client);
	assert_int_equal(o.client, 7);
	assert_int_equal(o.nr_experts, 4);
	assert_int_equal(o.experts[1].layer, 1);
	assert_int_equal(o.experts[1].expert, 31);
	assert_int_equal(o.experts[3].layer, 4095);
	assert_string_equal(o.to, "dimm:1");
	assert_false(o.json);
	assert_int_equal(parse(&o, &info, &err, "/dev/ndp3", NULL), 0);
	assert_string_equal(o.device, "/dev/ndp3");
	assert_true(o.json);
	assert_int_equal(parse(&o, &info, &err, "/dev/ndp3", "-u", NULL), 0);
	assert_true(o.human && !o.json);
	/* What follows the command is the command's. */
	assert_int_equal(parse(&o, &stat_command, &err, "--json", "ls", "--json", "-u", NULL), 0);
	assert_int_equal(o.nr_rest, 3);
	assert_string_equal(o.rest[1], "--json");
	assert_int_equal(parse(&o, &stat_command, &err, "--", "ls", NULL), 0);
	assert_string_equal(o.rest[0], "ls");
	assert_int_equal(parse(&o, &top, &err, "-d", "0.5", "-1", NULL), 0);
	assert_true(o.delay_s == 0.5 && o.once);
}

static void options_are_refused(void **state)
{
	(void)state;
	REFUSED(&info, "no option '--frob'", "--frob");
	REFUSED(&info, "no option '-z'", "-z");
	REFUSED(&info, "wants a value", "--device");
	REFUSED(&info, "twice", "--device", "a", "b");
	REFUSED(&info, "'b'", "a", "b");
	REFUSED(&migrate, "LAYER:EXPERT", "--expert", "3");
	REFUSED(&migrate, "LAYER:EXPERT", "--expert", "0:");
	REFUSED(&migrate, "LAYER:EXPERT", "--expert", "0:1,");
	REFUSED(&migrate, "LAYER:EXPERT", "--expert", "-1:0");
	REFUSED(&migrate, "LAYER:EXPERT", "--expert", "4294967296:0");
	REFUSED(&migrate, "LAYER:EXPERT", "0:0x3");
	REFUSED(&migrate, "--client wants a number", "--client", "1x");
	REFUSED(&migrate, "--client wants a number", "--client", "");
	REFUSED(&stat_command, "ndpctl stat -- COMMAND", "--json");
	REFUSED(&top, "--delay wants seconds", "-d", "0");
	REFUSED(&top, "--delay wants seconds", "-d", "nan");
	REFUSED(&top, "--delay wants seconds", "--delay", "1s");
}

static void at_most_so_many_experts(void **state)
{
	char many[8 * (MAX_EXPERTS + 1) + 1] = "";

	(void)state;
	for (int i = 0; i <= MAX_EXPERTS; i++)
		sprintf(many + strlen(many), "%s0:%d", i ? "," : "", i);
	REFUSED(&migrate, "at most 32", "--expert", many);
}

/* ---- where experts go --------------------------------------------------------- */

static void places_are_read(void **state)
{
	static const struct {
		const char *to;
		uint32_t there, mask;
		int r;
	} all[] = {
		{ "dimm:2", 0xf, 4, 0 }, { "dimm:0,3", 0xf, 9, 0 }, { "spread:0x6", 0xf, 6, 0 },
		{ "all", 0x15, 0x15, 0 }, { "all", 0, 0, -ENODEV }, { "dimm:31", 0, 1u << 31, 0 },
		{ "spread:0xffffffff", 0, UINT32_MAX, 0 },
		/* "spread:2" is two DIMMs for ndp-run: which ones is not said here. */
		{ "spread:2", 0xf, 0, -EINVAL }, { "spread:0x", 0xf, 0, -EINVAL },
		{ "spread:0x0", 0xf, 0, -EINVAL }, { "spread:0x1ffffffff", 0, 0, -EINVAL },
		{ "dimm:", 0xf, 0, -EINVAL }, { "dimm:32", 0, 0, -EINVAL },
		{ "dimm:1,", 0xf, 0, -EINVAL }, { "dimm:-1", 0xf, 0, -EINVAL },
		{ "local", 0xf, 0, -EINVAL }, { "", 0xf, 0, -EINVAL },
		{ "dimm:4", 0xf, 0, -ENODEV }, { "spread:0x30", 0xf, 0, -ENODEV },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct ndp_error err = { 0 };
		uint32_t mask = 0;
		int r = migrate_parse_to(&mask, all[i].to, all[i].there, &err);

		if (r != all[i].r || (r == 0 && mask != all[i].mask))
			fail_msg("'%s': %d, %#x", all[i].to, r, mask);
		if (r < 0)
			assert_true(err.message[0]);
	}
}

static void dimms_of_a_client(void **state)
{
	json_t *doc = json_loads(
		"{\"clients\": [{\"client\": 1, \"node\": \"/dev/ndp1\"},"
		"{\"client\": 2, \"node\": \"\", \"dimms\": [{\"dimm\": 0}, {\"dimm\": 5}]},"
		"{\"client\": 3, \"node\": \"/dev/ndp9\"}],"
		"\"devices\": [{\"node\": \"/dev/ndp0\", \"dimms\": [{\"dimm\": 7}]},"
		"{\"node\": \"/dev/ndp1\", \"dimms\": [{\"dimm\": 1}, {\"dimm\": 99}]}]}",
		0, NULL);

	(void)state;
	assert_int_equal(migrate_client_dimms(doc, migrate_find_client(doc, 1)), 2);
	assert_int_equal(migrate_client_dimms(doc, migrate_find_client(doc, 2)), 0x21);
	assert_int_equal(migrate_client_dimms(doc, migrate_find_client(doc, 3)), 0);
	assert_null(migrate_find_client(doc, 4));
	json_decref(doc);
}

/* ---- output --------------------------------------------------------------------- */

static void json_has_no_nan(void **state)
{
	json_t *v = json_pack("[o, o, o, o, o]", json_number(NAN), json_number(INFINITY),
			      json_number(1.5), json_u64(UINT64_MAX), json_text("a\xff" "b"));
	char *text = json_dumps(v, JSON_COMPACT);

	(void)state;
	assert_string_equal(text, "[null,null,1.5,null,\"a?b\"]");
	free(text);
	json_decref(v);
}

static void tables_are_aligned(void **state)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);
	struct table t;

	(void)state;
	table_begin(&t, "NAME\t>COUNT\tLAST");
	table_row(&t, "%s\t%d\t%s", "a", 12345678, "x");
	table_row(&t, "%s\t%d", "a long name", 7);
	table_row(&t, "%s\t\t%s", "ctrl\033[2J", "too\tmany\tcells");
	table_end(&t, f);
	fclose(f);
	assert_string_equal(text, "NAME            COUNT  LAST\n"
				  "a            12345678  x\n"
				  "a long name         7\n"
				  "ctrl?[2J               too\n");
	free(text);
}

static void numbers_for_people(void **state)
{
	char b[32];

	(void)state;
	assert_string_equal(text_bytes(b, sizeof(b), 0), "0 B");
	assert_string_equal(text_bytes(b, sizeof(b), 1536), "1.5 KiB");
	assert_string_equal(text_bytes(b, sizeof(b), 240.0 * (1 << 20)), "240 MiB");
	assert_string_equal(text_ns(b, sizeof(b), 8900), "8.9 us");
	assert_string_equal(text_ns(b, sizeof(b), 2.5e12), "2500 s");
	assert_string_equal(text_count(b, sizeof(b), NAN), "-");
	assert_string_equal(text_share(b, sizeof(b), 0.221), "22.1 %");
	assert_string_equal(text_share(b, sizeof(b), NAN), "-");
	assert_string_equal(text_mask(b, sizeof(b), 0), "none");
	assert_string_equal(text_mask(b, sizeof(b), 0x2f), "0-3,5");
	assert_string_equal(text_mask(b, sizeof(b), 1u << 31), "31");
	assert_string_equal(text_mask(b, sizeof(b), UINT32_MAX), "0-31");
}

/* ---- top ----------------------------------------------------------------------------- */

#define DOCUMENT								\
	"{\"dry_run\": true, \"uptime_s\": 5.0, \"host\": \"h\","		\
	"\"devices\": [{\"node\": \"/dev/ndp0\", \"dimms\": [{\"dimm\": 3,"	\
	"\"state\": \"ready\","	\
	"\"memory_bytes\": 100, \"free_bytes\": 40, \"inflight\": 9, \"resets\": 0,"	\
	"\"compute\": {\"commands\": %d, \"busy_modelled_ns\": %d}, \"link\": {}}]}],"	\
	"\"clients\": [{\"client\": 1, \"name\": \"\"}, {\"client\": 2, \"name\": \"m\","	\
	"\"pid\": 4, \"state\": \"running\", \"model\": {\"posts\": %d, \"coverage\": null,"	\
	"\"migrations\": {\"prefetch\": %d}, \"migrated_bytes\": {\"prefetch\": 1000}}}]}"

static void sample(struct top_sample *s, uint64_t at_ns, const char *text)
{
	json_t *doc = json_loads(text, 0, NULL);
	struct ndp_error err;

	assert_non_null(doc);
	*s = (struct top_sample){ .at_ns = at_ns };
	assert_int_equal(top_from_document(s, doc, &err), 0);
	json_decref(doc);
}

static void rates_of_two_samples(void **state)
{
	struct top_sample a, b;
	char text[1024];
	json_t *doc;
	char *shown;

	(void)state;
	snprintf(text, sizeof(text), DOCUMENT, 100, 1000000, 50, 3);
	sample(&a, 1000000000, text);
	top_rates(&a, NULL);
	assert_true(isnan(a.interval_s) && isnan(a.dimms[0].compute.commands_s));
	snprintf(text, sizeof(text), DOCUMENT, 300, 501000000, 49, 7);
	sample(&b, 3000000000, text);
	top_rates(&b, &a);
	assert_int_equal(b.nr_models, 1);
	assert_int_equal(b.nr_dimms, 1);
	assert_true(b.dry_run);
	assert_true(b.interval_s == 2);
	assert_true(b.dimms[0].compute.commands_s == 100);
	assert_true(b.dimms[0].compute.busy == 0.25);
	assert_int_equal(b.dimms[0].queue, 9);
	assert_true(b.models[0].moves_s[0] == 2);
	assert_true(b.models[0].bytes_s == 0);
	/* It went back: another process behind the same number. */
	assert_true(isnan(b.models[0].posts_s));
	assert_true(isnan(b.models[0].covered));
	doc = top_json(&b);
	shown = json_dumps(doc, JSON_COMPACT);
	assert_non_null(shown);
	assert_non_null(strstr(shown, "\"posts_per_s\":null"));
	assert_null(strstr(shown, "nan"));
	free(shown);
	json_decref(doc);
	top_free(&a);
	top_free(&b);
}

/* Anything may come from a socket. */
static void absurd_documents(void **state)
{
	static const char *const all[] = {
		"{}", "{\"clients\": 3, \"devices\": \"x\"}",
		"{\"clients\": [null, 1, {\"name\": \"a\\u0001b\", \"model\": []}]}",
		"{\"devices\": [{\"dimms\": [7, {\"dimm\": -1, \"state\": 9, \"compute\": 1}]}]}",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct top_sample s;
		json_t *doc;
		char *text;

		sample(&s, 1, all[i]);
		top_rates(&s, NULL);
		doc = top_json(&s);
		text = json_dumps(doc, 0);
		assert_non_null(text);
		free(text);
		json_decref(doc);
		top_free(&s);
	}
}

/* ---- stat ----------------------------------------------------------------------------- */

static void counters_around_a_command(void **state)
{
	const struct ndp_expert_shape shape = { 64, 64, 64 };
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_device *dev;
	struct ndp_io *io;
	struct ndp_error err;
	struct stat_shot before, after;
	struct ndp_result result;
	struct ndp_cmd cmd = { .op = NDP_OP_FFN_EXPERT, .x_mask = 2, .tokens = 3, .y_off = 4096,
			       .ldx = 128, .ldy = 256 };

	(void)state;
	assert_int_equal(ndp_open(&dev, "soft:dimms=2,size=1M", &err), 0);
	ndp_placement_local(&p, ndp_expert_blocks(&shape), 1);
	assert_int_equal(ndp_expert_create(&w, dev, &shape, &p, 0, 0, &err), 0);
	assert_int_equal(ndp_weights_seal(w), 0);
	assert_int_equal(ndp_io_create(&io, dev, 2, 8192, &err), 0);
	cmd.weights = w;
	cmd.x = io;
	cmd.y = io;
	assert_int_equal(ndp_run(dev, &cmd, &result), 0);
	assert_int_equal(stat_take(&before, &dev, 1, &err), 0);
	assert_int_equal(ndp_run(dev, &cmd, &result), 0);
	assert_int_equal(ndp_run(dev, &cmd, &result), 0);
	assert_int_equal(stat_take(&after, &dev, 1, &err), 0);
	assert_int_equal(after.dimms[1].compute.commands, 3);
	stat_subtract(&after, &before);
	assert_int_equal(after.nr_dimms, 2);
	assert_int_equal(after.dimms[0].compute.commands, 0);
	assert_int_equal(after.dimms[1].compute.commands, 2);
	assert_int_equal(after.dimms[1].compute.tokens, 6);
	assert_int_equal(after.dimms[1].compute.busy_ns, 2 * result.modelled_ns);
	/* Plugged anew meanwhile: everything is since then. */
	before.dimms[1].compute.commands = 1000;
	after.dimms[1].compute.commands = 4;
	stat_subtract(&after, &before);
	assert_int_equal(after.dimms[1].compute.commands, 4);
	free(before.dimms);
	free(after.dimms);
	ndp_io_free(io);
	ndp_weights_free(w);
	ndp_close(dev);
}

/* ---- doctor --------------------------------------------------------------------------- */

static void kernels(void **state)
{
	static const struct {
		const char *release;
		enum verdict v;
	} all[] = {
		{ "6.1.0-18-amd64", CHECK_OK }, { "6.12.3", CHECK_OK }, { "7.0.0", CHECK_OK },
		{ "5.19.0", CHECK_PROBLEM }, { "6.0.19", CHECK_PROBLEM }, { "x", CHECK_NOTE },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct doctor d = { .checks = json_array() };

		doctor_kernel(&d, all[i].release);
		assert_int_equal(json_array_size(d.checks), 1);
		assert_int_equal(d.count[all[i].v], 1);
		json_decref(d.checks);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_are_read),
		cmocka_unit_test(options_are_refused),
		cmocka_unit_test(at_most_so_many_experts),
		cmocka_unit_test(places_are_read),
		cmocka_unit_test(dimms_of_a_client),
		cmocka_unit_test(json_has_no_nan),
		cmocka_unit_test(tables_are_aligned),
		cmocka_unit_test(numbers_for_people),
		cmocka_unit_test(rates_of_two_samples),
		cmocka_unit_test(absurd_documents),
		cmocka_unit_test(counters_around_a_command),
		cmocka_unit_test(kernels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
