// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * main.c - ndp-run: runs a Mixture-of-Experts language model with its experts on
 * NDP DIMMs, CPU and GPU, and checks it against a reference.
 *
 * Standard output is either text or one JSON document.  What went wrong is one
 * line on standard error, and with --json also the document.
 */
#include "check.h"
#include "error.h"
#include "interrupt.h"
#include "lock.h"
#include "options.h"
#include "report.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	STATUS_OK = 0,
	STATUS_CHECK_FAILED = 1,
	STATUS_USAGE = 2,
	STATUS_FAILED = 3,
};

#define MAX_NODES 1024
#define MAX_PROMPT_BYTES (1 << 24)

static const char lost_while_loading[] =
	"a model file was truncated while it was read, or a DIMM went away: start again";
static const char lost_while_running[] =
	"memory of a DIMM is gone: it was unplugged or has failed; start again with those that are "
	"left";

/* Everything that has to be given back. */
struct session {
	const struct options *o;
	struct reference *reference;
	uint32_t *own_prompt; /* of --prompt and --prompt-file */
	struct trace *trace;
	struct engine *engine;
	struct migrator *migrator;
	struct ndp_attachment *daemon;
	int lock_fd;
	struct run run;
};

/* ---- progress ---------------------------------------------------------- */

static bool show_progress;

static void progress_clear(void)
{
	if (show_progress)
		fputs("\r\033[K", stderr);
}

/* Called by one thread at a time, maybe not this one. */
static int load_progress(void *arg, uint32_t done, uint32_t total)
{
	struct ndp_error ignored;

	(void)arg;
	if (show_progress)
		fprintf(stderr, "\rloading experts: %u of %u", done, total);
	if (done == total)
		progress_clear();
	return interrupt_check(&ignored);
}

/* ---- prompts ----------------------------------------------------------- */

static int read_prompt_file(const char *path, char **text, size_t *n, struct ndp_error *err)
{
	FILE *f = fopen(path, "re");
	int r = 0;

	if (!f)
		return fail(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
	*text = malloc(MAX_PROMPT_BYTES + 1);
	if (!*text) {
		fclose(f);
		return fail(err, -ENOMEM, "out of memory");
	}
	errno = 0;
	*n = fread(*text, 1, MAX_PROMPT_BYTES + 1, f);
	if (ferror(f))
		r = fail(err, errno ? -errno : -EIO, "%s: cannot be read: %s", path,
			 strerror(errno ? errno : EIO));
	else if (*n == 0 || *n > MAX_PROMPT_BYTES)
		r = fail(err, -EINVAL, "%s: a prompt of 1 to %d bytes is wanted", path,
			 MAX_PROMPT_BYTES);
	fclose(f);
	return r;
}

/* --prompt or --prompt-file as the run's only prompt. */
static int own_prompt(struct session *s, const struct model_config *c, struct ndp_error *err)
{
	const struct options *o = s->o;
	const char *text = o->prompt;
	char *file_text = NULL;
	size_t n = text ? strlen(text) : 0;
	int r = 0;

	if (c->vocab != TEXT_VOCAB)
		return fail(err, -EINVAL, "%s: a vocabulary of %u cannot be turned into text: only "
			    "models of bytes (%d tokens) can; --check works", o->model, c->vocab,
			    TEXT_VOCAB);
	if (o->prompt_file)
		r = read_prompt_file(o->prompt_file, &file_text, &n, err);
	if (r < 0)
		goto out;
	if (file_text)
		text = file_text;
	s->own_prompt = calloc(n, sizeof(*s->own_prompt));
	s->run.prompts = calloc(1, sizeof(*s->run.prompts));
	if (!s->own_prompt || !s->run.prompts) {
		r = fail(err, -ENOMEM, "out of memory");
		goto out;
	}
	for (size_t i = 0; i < n; i++)
		s->own_prompt[i] = (unsigned char)text[i];
	s->run.nr_prompts = 1;
	s->run.prompts[0] = (struct run_prompt){
		.name = "prompt", .tokens = s->own_prompt, .nr_tokens = n, .max_new = o->tokens,
	};
out:
	free(file_text);
	return r;
}

static int reference_prompts(struct session *s, const struct model_config *c,
			     struct ndp_error *err)
{
	int r = reference_load(&s->reference, s->o->check, c->vocab, err);

	if (r < 0)
		return r;
	s->run.prompts = calloc(s->reference->nr_prompts, sizeof(*s->run.prompts));
	if (!s->run.prompts)
		return fail(err, -ENOMEM, "out of memory");
	s->run.nr_prompts = s->reference->nr_prompts;
	for (uint32_t i = 0; i < s->run.nr_prompts; i++) {
		const struct reference_prompt *ref = &s->reference->prompts[i];

		s->run.prompts[i] = (struct run_prompt){
			.name = ref->name, .tokens = ref->prompt, .nr_tokens = ref->nr_prompt,
			.max_new = ref->nr_tokens,
		};
		verdict_init(&s->run.prompts[i].verdict, ref, c->vocab);
	}
	return 0;
}

/* The last token that is generated is not fed. */
static int positions_needed(const struct run *run, const struct model_config *c,
			    uint32_t *positions, struct ndp_error *err)
{
	*positions = 0;
	for (uint32_t i = 0; i < run->nr_prompts; i++) {
		const struct run_prompt *p = &run->prompts[i];
		uint32_t need = p->nr_tokens + p->max_new - 1;

		if (need > c->max_positions)
			return fail(
				err, -EINVAL,
				"%s: %u tokens and %u more need %u positions, the "
				"model has %u (max_position_embeddings): use a shorter prompt or "
				"fewer tokens",
				p->name, p->nr_tokens, p->max_new, need, c->max_positions);
		if (need > *positions)
			*positions = need;
	}
	return 0;
}

/* ---- running ----------------------------------------------------------- */

struct stream {
	const struct session *s;
	struct run_prompt *p;
	bool terminal;
};

static int observe(void *arg, uint32_t step, const float *logits, uint32_t token,
		   struct ndp_error *err)
{
	struct stream *st = arg;
	const struct options *o = st->s->o;
	const struct model_config *c = &st->s->run.model->config;

	(void)err;
	if (st->p->verdict.ref) {
		if (show_progress)
			fprintf(stderr, "\r%s: %u of %u", st->p->name, step + 1, st->p->max_new);
		return verdict_step(&st->p->verdict, step, logits, token) ? GENERATE_ON :
									    GENERATE_END;
	}
	if (config_is_eos(c, token))
		return GENERATE_END_BEFORE;
	if (!o->json) {
		text_put(stdout, token, st->terminal);
		if (st->terminal)
			fflush(stdout);
	}
	return GENERATE_ON;
}

static int run_prompt(struct session *s, struct run_prompt *p, struct ndp_error *err)
{
	struct sampler sampler = {
		.temperature = s->o->temperature, .top_k = s->o->top_k, .top_p = s->o->top_p,
		.state = s->o->seed,
	};
	struct stream st = { s, p, isatty(STDOUT_FILENO) };
	int r;

	if (!p->verdict.ref && !s->o->json) {
		for (uint32_t i = 0; i < p->nr_tokens && !s->o->quiet; i++)
			text_put(stdout, p->tokens[i], st.terminal);
		fflush(stdout);
	}
	r = generate(&p->gen, s->engine, &s->run.model->config, &sampler, p->tokens, p->nr_tokens,
		     p->max_new, observe, &st, err);
	progress_clear();
	if (s->o->json)
		return r;
	if (!p->verdict.ref)
		fputc('\n', stdout);
	else if (r == 0 && (!s->o->quiet || !verdict_passed(&p->verdict)))
		report_prompt_text(stdout, &s->run, p);
	fflush(stdout); /* a run takes minutes on an emulated CPU: show what is there */
	return r;
}

static int open_and_lock(struct session *s, struct ndp_error *err)
{
	const struct options *o = s->o;
	const struct domains *d = &s->run.domains;
	int r;

	r = domains_open(&s->run.domains, o, err);
	if (r < 0)
		return r;
	if (!o->lock)
		return 0;
	if (!o->lock_file && (!d->dev || d->device.name[0] != '/'))
		return fail(err, -EINVAL, "%s%s%s has no node to lock: use --lock=FILE",
			    d->dev ? "the device '" : "a run without DIMMs",
			    d->dev ? d->device.name : "", d->dev ? "'" : "");
	s->lock_fd = lock_take(o->lock_file ? o->lock_file : d->device.name, o->quiet, err);
	return s->lock_fd < 0 ? s->lock_fd : 0;
}

static int load_model(struct session *s, const struct model_config *c, struct ndp_error *err)
{
	const struct options *o = s->o;
	struct domains *d = &s->run.domains;
	struct ndp_moe_options options = {
		.device = d->dev,
		.cpu = d->cpu,
		.host = d->has_host ? &d->host.host : NULL,
		.policy = o->policy,
		.placement = o->placement,
		.deterministic = o->deterministic,
		.progress = load_progress,
	};
	int r = model_open(&s->run.model, c, o->model, err);

	if (r == 0)
		r = domains_open_gpu(d, o, &s->run.model->info, err);
	if (r < 0)
		return r;
	options.gpu = d->gpu;
	options.domains = d->mask;
	options.adapt = d->gpu && !o->daemon;
	return model_load_experts(s->run.model, &options, err);
}

static int attach(struct session *s, struct ndp_error *err)
{
	const struct ndp_model_info *info = &s->run.model->info;
	const struct domains *d = &s->run.domains;
	struct ndp_gpu_info gpu = { 0 };
	struct ndp_attach_options options = {
		.socket = s->o->daemon_socket,
		.name = info->family,
		.device = d->dev,
		.layers = info->layers,
		.experts = info->router.experts,
		.top_k = info->router.top_k,
		.hidden = info->hidden,
		.intermediate = info->routed.neurons,
		.expert_bytes = ndp_expert_blocks(&info->routed) *
				ndp_expert_block_bytes(&info->routed),
	};

	if (d->gpu) {
		ndp_gpu_info(d->gpu, &gpu);
		options.gpu_bytes = gpu.budget_bytes;
	}
	return ndp_placement_attach(&s->daemon, &options, err);
}

/* How often experts have moved, by whom ever. */
static uint64_t count_moves(const struct model *m)
{
	uint64_t moves = 0;

	for (uint32_t l = 0; l < m->info.layers; l++) {
		for (uint32_t e = 0; e < m->info.router.experts; e++) {
			struct ndp_weights *w = ndp_moe_is_moe(m->moe, l) ?
				ndp_moe_weights(m->moe, l, e) : NULL;
			struct ndp_weights_info info;

			if (w && ndp_weights_info(w, &info) == 0)
				moves += info.moves;
		}
	}
	return moves;
}

static int run_prompts(struct session *s, uint32_t positions, struct ndp_error *err)
{
	struct run *run = &s->run;
	struct ndp_error move_error;
	int stopped;
	int r;

	if (s->o->daemon) {
		r = attach(s, err);
		if (r < 0)
			return r;
	}
	r = engine_create(&s->engine, run->model, positions, s->trace, s->daemon, err);
	if (r < 0)
		return r;
	r = report_snapshot(&run->before, &run->domains, err);
	if (r < 0)
		return r;
	if (s->o->migrate_ms) {
		r = migrator_start(&s->migrator, run->model, run->domains.dev, s->o->migrate_ms,
				   s->o->seed, err);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < run->nr_prompts && r == 0 && !migrator_failed(s->migrator); i++)
		r = run_prompt(s, &run->prompts[i], err);
	stopped = migrator_stop(s->migrator, &run->migration, &move_error);
	s->migrator = NULL;
	if (r == 0 && stopped < 0) {
		*err = move_error;
		r = stopped;
	}
	if (r < 0)
		return r;
	run->experts = *engine_expert_stats(s->engine);
	ndp_moe_memory(run->model->moe, &run->memory);
	run->moves = count_moves(run->model);
	if (s->daemon)
		ndp_placement_state(s->daemon, &run->daemon);
	return report_snapshot(&run->after, &run->domains, err);
}

static int report(struct session *s, struct ndp_error *err)
{
	const struct options *o = s->o;

	if (o->json) {
		interrupt_mute();
		return report_json(stdout, &s->run, err);
	}
	if (!o->quiet)
		report_text(stdout, &s->run);
	if (o->check)
		printf("check: %s, %u prompts\n", report_passed(&s->run) ? "passed" : "FAILED",
		       s->run.nr_prompts);
	errno = 0;
	if (fflush(stdout) != 0 || ferror(stdout))
		return fail(err, errno ? -errno : -EIO, "standard output cannot be written: %s",
			    strerror(errno ? errno : EIO));
	return 0;
}

/* A status, STATUS_USAGE and above with @err filled in. */
static int session_run(struct session *s, struct ndp_error *err)
{
	const struct options *o = s->o;
	struct model_config c;
	uint32_t positions;
	uint64_t start;
	int r;

	/* What can be refused without a device is refused first. */
	if (config_load(&c, o->model, err) < 0)
		return STATUS_FAILED;
	if (o->check && reference_prompts(s, &c, err) < 0)
		return STATUS_FAILED;
	if (!o->check && own_prompt(s, &c, err) < 0)
		return STATUS_USAGE;
	if (positions_needed(&s->run, &c, &positions, err) < 0)
		return STATUS_USAGE;
	if (o->trace && trace_open(&s->trace, o->trace, c.experts, err) < 0)
		return STATUS_FAILED;

	if (open_and_lock(s, err) < 0)
		return STATUS_FAILED;
	interrupt_on_lost_memory(STATUS_FAILED, lost_while_loading);
	start = wall_ns();
	r = load_model(s, &c, err);
	s->run.load_wall_ns = wall_ns() - start;
	interrupt_on_lost_memory(STATUS_FAILED, lost_while_running);
	if (r == 0)
		r = run_prompts(s, positions, err);
	progress_clear();
	if (r == 0) {
		r = trace_close(s->trace, err);
		s->trace = NULL;
	}
	if (r == 0)
		r = report(s, err);
	if (r < 0)
		return STATUS_FAILED;
	return o->check && !report_passed(&s->run) ? STATUS_CHECK_FAILED : STATUS_OK;
}

static void session_end(struct session *s)
{
	struct ndp_error ignored;

	trace_close(s->trace, &ignored);
	engine_free(s->engine);
	ndp_placement_detach(s->daemon);
	model_free(s->run.model);
	domains_close(&s->run.domains);
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	for (uint32_t i = 0; i < s->run.nr_prompts; i++)
		free(s->run.prompts[i].gen.tokens);
	free(s->run.prompts);
	free(s->own_prompt);
	reference_free(s->reference);
}

static int list(struct ndp_error *err)
{
	struct ndp_error why = { 0 };
	struct ndp_node *nodes = calloc(MAX_NODES, sizeof(*nodes));
	int n = nodes ? ndp_discover(nodes, MAX_NODES, &why) : -ENOMEM;
	int r;

	r = report_nodes_json(stdout, nodes, n > 0 ? n : 0, err);
	free(nodes);
	if (r < 0)
		return STATUS_FAILED;
	if (n < 0) {
		fail(err, n, "%s", why.code ? why.message : strerror(-n));
		return STATUS_FAILED;
	}
	if (n == 0)
		fprintf(stderr, "ndp-run: %s\n", why.message);
	return STATUS_OK;
}

int main(int argc, char **argv)
{
	struct ndp_error err = { 0 };
	struct options o;
	struct session s = { .o = &o, .lock_fd = -1 };
	int status = STATUS_USAGE;

	s.run.options = &o;
	if (options_parse(&o, argc, argv, &err) < 0)
		goto out;
	if (o.help) {
		fputs(options_usage, stdout);
		return STATUS_OK;
	}
	show_progress = !o.quiet && !o.list && isatty(STDERR_FILENO);
	status = STATUS_FAILED;
	if (interrupt_setup(o.json, &err) < 0)
		goto out;
	if (o.list) {
		status = list(&err);
		if (status != STATUS_OK)
			fprintf(stderr, "ndp-run: %s\n", err.message);
		return status;
	}
	status = session_run(&s, &err);
	session_end(&s);
	if (err.code == -EINTR || interrupt_status() != 128)
		status = interrupt_status();
out:
	if (status > STATUS_CHECK_FAILED && err.code < 0) {
		interrupt_mute();
		fprintf(stderr, "ndp-run: %s\n", err.message);
		if (o.json)
			report_error_json(stdout, &err);
	}
	return status;
}
