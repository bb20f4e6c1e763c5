// SPDX-License-Identifier: GPL-2.0-or-later
/* report.c - the text of report.h, and the sums that both forms print. */
#include "report.h"
#include "error.h"
#include "text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

int report_snapshot(struct dimm_snapshot *s, const struct domains *domains, struct ndp_error *err)
{
	memset(s, 0, sizeof(*s));
	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++) {
		struct ndp_dimm_info info;
		int r;

		if (!(domains->device.dimm_mask >> d & 1))
			continue;
		r = ndp_dimm_info(domains->dev, d, &info);
		if (r < 0)
			return fail(err, r, "DIMM %u cannot be asked for its counters: %s", d,
				    strerror(-r));
		s->compute[d] = info.compute;
		s->link[d] = info.link;
	}
	return 0;
}

const char *report_domains(const struct domains *d, char *text, size_t size)
{
	*text = 0;
	for (int i = 0; i < NDP_DOMAINS; i++) {
		if (!(d->mask >> i & 1))
			continue;
		if (*text)
			strncat(text, ", ", size - strlen(text) - 1);
		strncat(text, domain_names[i], size - strlen(text) - 1);
	}
	return text;
}

bool report_passed(const struct run *run)
{
	for (uint32_t i = 0; i < run->nr_prompts; i++)
		if (!verdict_passed(&run->prompts[i].verdict))
			return false;
	return run->nr_prompts > 0;
}

struct ndp_counters report_difference(const struct ndp_counters *after,
				      const struct ndp_counters *before)
{
	return (struct ndp_counters){
		.commands = after->commands - before->commands,
		.errors = after->errors - before->errors,
		.tokens = after->tokens - before->tokens,
		.bytes = after->bytes - before->bytes,
		.busy_ns = after->busy_ns - before->busy_ns,
		.wall_ns = after->wall_ns - before->wall_ns,
	};
}

static void accumulate(struct ndp_counters *sum, const struct ndp_counters *c)
{
	sum->commands += c->commands;
	sum->errors += c->errors;
	sum->tokens += c->tokens;
	sum->bytes += c->bytes;
	sum->busy_ns += c->busy_ns;
	sum->wall_ns += c->wall_ns;
}

struct report_totals report_totals(const struct run *run)
{
	struct report_totals t = { 0 };

	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++) {
		struct ndp_counters c = report_difference(&run->after.compute[d],
							  &run->before.compute[d]);
		struct ndp_counters l = report_difference(&run->after.link[d],
							  &run->before.link[d]);

		accumulate(&t.compute, &c);
		accumulate(&t.link, &l);
		if (c.busy_ns > t.busiest_ns)
			t.busiest_ns = c.busy_ns;
	}
	for (uint32_t i = 0; i < run->nr_prompts; i++) {
		const struct run_prompt *p = &run->prompts[i];

		t.prompt_tokens += p->nr_tokens;
		t.prompt_wall_ns += p->gen.prompt_wall_ns;
		t.decode_steps += p->gen.decode_steps;
		t.decode_wall_ns += p->gen.decode_wall_ns;
	}
	return t;
}

/* ---- one prompt -------------------------------------------------------- */

static void print_ids(FILE *f, const uint32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "%s%u", i ? " " : "", ids[i]);
}

static void print_tokens(FILE *f, const struct run *run, const uint32_t *ids, uint32_t n)
{
	if (run->model->config.vocab == TEXT_VOCAB)
		text_print_quoted(f, ids, n);
	else
		print_ids(f, ids, n);
}

static void print_verdict(FILE *f, const struct verdict *v)
{
	const struct reference_prompt *ref = v->ref;

	fprintf(f, "  %s: %u of %u tokens equal", verdict_passed(v) ? "equal" : "DIFFERENT",
		v->equal_tokens, ref->nr_tokens);
	fprintf(f, "; worst of %u logits %.4f off (step %u, token %u; %.2f allowed)",
		v->compared_logits, (double)v->worst_deviation, v->worst_step, v->worst_id,
		(double)CHECK_TOLERANCE);
	if (isfinite(v->smallest_margin))
		fprintf(f, "; smallest margin %.4f (step %u)", (double)v->smallest_margin,
			v->smallest_margin_step);
	fputc('\n', f);
	if (v->diverged)
		fprintf(f, "  step %u: token %u is wanted, token %u was chosen\n", v->equal_tokens,
			ref->tokens[v->equal_tokens], v->got);
	if (v->wrong_logits)
		fprintf(f, "  %u of %u logits are more than %.2f off\n", v->wrong_logits,
			v->compared_logits, (double)CHECK_TOLERANCE);
}

void report_prompt_text(FILE *f, const struct run *run, const struct run_prompt *p)
{
	fprintf(f, "%s\n     ", p->name);
	print_tokens(f, run, p->tokens, p->nr_tokens);
	fputs("\n  -> ", f);
	print_tokens(f, run, p->gen.tokens, p->gen.nr_tokens);
	fputc('\n', f);
	if (p->verdict.ref)
		print_verdict(f, &p->verdict);
}

/* ---- the whole run ----------------------------------------------------- */

static double us(uint64_t ns)
{
	return (double)ns / 1e3;
}

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

static void print_row(FILE *f, const char *name, const struct ndp_counters *c,
		      const struct ndp_counters *l)
{
	fprintf(f, "%5s %10" PRIu64 " %10" PRIu64 " %14" PRIu64 " %14.1f %14.1f %14" PRIu64
		" %14.1f\n", name, c->commands, c->tokens, c->bytes, us(c->busy_ns),
		us(c->wall_ns), l->bytes, us(l->busy_ns));
}

static void print_dimms(FILE *f, const struct run *run, const struct report_totals *t)
{
	fprintf(f, "%5s %10s %10s %14s %14s %14s %14s %14s\n", "", "", "", "", "modelled", "wall",
		"", "modelled");
	fprintf(f, "%5s %10s %10s %14s %14s %14s %14s %14s\n", "DIMM", "commands", "tokens",
		"bytes", "busy us", "busy us", "link bytes", "link us");
	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++) {
		struct ndp_counters c = report_difference(&run->after.compute[d],
							  &run->before.compute[d]);
		struct ndp_counters l = report_difference(&run->after.link[d],
							  &run->before.link[d]);
		char name[12];

		if (!(run->domains.device.dimm_mask >> d & 1))
			continue;
		snprintf(name, sizeof(name), "%u", d);
		print_row(f, name, &c, &l);
	}
	print_row(f, "all", &t->compute, &t->link);
}

static void print_times(FILE *f, const struct run *run, const struct report_totals *t)
{
	uint64_t tokens = t->prompt_tokens + t->decode_steps;

	fprintf(f, "wall: loading %.1f ms", ms(run->load_wall_ns));
	if (t->prompt_tokens)
		fprintf(f, "; %.3f ms a prompt token (%" PRIu64 ")",
			ms(t->prompt_wall_ns) / (double)t->prompt_tokens, t->prompt_tokens);
	if (t->decode_steps)
		fprintf(f, "; %.3f ms a generated token (%" PRIu64 " fed)",
			ms(t->decode_wall_ns) / (double)t->decode_steps, t->decode_steps);
	fputc('\n', f);
	fprintf(f, "wall, layers of experts: %.1f ms; routing %.1f, scheduling %.1f, adding up at "
		"the end %.1f\n", ms(run->experts.wall_ns), ms(run->experts.route_wall_ns),
		ms(run->experts.schedule_wall_ns), ms(run->experts.reduce_wall_ns));
	if (!tokens)
		return;
	fprintf(f, "modelled: experts %.2f us a token by the scheduler's plans for %s",
		run->experts.modelled_ns / 1e3 / (double)tokens,
		run->domains.has_host ? run->domains.host.name : "a host that it guessed");
	if (run->domains.dev)
		fprintf(f, "; %.2f us on the busiest DIMM of each layer, as the DIMMs say",
			us(run->experts.dimm_modelled_ns) / (double)tokens);
	fputc('\n', f);
}

static void print_domains(FILE *f, const struct run *run)
{
	fprintf(f, "%6s %10s %10s %10s %14s %14s %14s\n", "", "", "", "", "", "wall", "modelled");
	fprintf(f, "%6s %10s %10s %10s %14s %14s %14s\n", "domain", "experts", "commands", "pairs",
		"weight bytes", "busy us", "busy us");
	for (int i = 0; i < NDP_DOMAINS; i++) {
		const struct ndp_domain_report *d = &run->experts.domain[i];

		if (run->domains.mask >> i & 1 || d->commands)
			fprintf(f, "%6s %10u %10u %10" PRIu64 " %14" PRIu64 " %14.1f %14.1f\n",
				domain_names[i], d->experts, d->commands, d->tokens, d->bytes,
				us(d->wall_ns), d->modelled_ns / 1e3);
	}
	if (run->domains.gpu_unused)
		fputs("GPU unused: --gpu-experts 0\n", f);
	if (run->experts.gpu_lost)
		fputs("GPU lost: its share was computed elsewhere\n", f);
}

/* Which machine this was. */
static void print_machine(FILE *f, const struct run *run)
{
	const struct domains *d = &run->domains;
	int dimms = __builtin_popcount(d->device.dimm_mask);

	if (d->dev)
		fprintf(f, "%s, %d DIMM%s; ", d->device.name, dimms, dimms == 1 ? "" : "s");
	if (d->mask >> NDP_DOMAIN_CPU & 1)
		fprintf(f, "CPU, %u thread%s, %s; ", d->cpu_info.threads,
			d->cpu_info.threads == 1 ? "" : "s", ndp_isa_name(d->cpu_info.isa));
	if (d->gpu) {
		struct ndp_gpu_info info;

		ndp_gpu_info(d->gpu, &info);
		fprintf(f, "GPU %s%s, %" PRIu64 " bytes for experts; ", info.name,
			info.is_cpu ? " (a CPU)" : "", info.budget_bytes);
	}
}

void report_text(FILE *f, const struct run *run)
{
	const struct ndp_model_info *info = &run->model->info;
	struct report_totals t = report_totals(run);

	fputc('\n', f);
	print_machine(f, run);
	fprintf(f, "%u experts in %u layers; %" PRIu64 " bytes in DIMMs, %" PRIu64
		" in host memory", info->moe_layers * info->router.experts, info->moe_layers,
		run->memory.dimm_bytes, run->memory.host_bytes);
	if (run->domains.gpu)
		fprintf(f, ", copies of %u experts (%" PRIu64 " bytes) in GPU memory",
			run->memory.gpu_experts, run->memory.gpu_bytes);
	if (run->domains.dev)
		fprintf(f, "; placed %s", run->options->placement);
	fprintf(f, "; policy %s\n", ndp_policy_name(run->options->policy));
	print_domains(f, run);
	if (run->domains.dev)
		print_dimms(f, run, &t);
	print_times(f, run, &t);
	if (run->domains.dev)
		fprintf(f, "DIMMs: x %" PRIu64 " bytes written, y %" PRIu64 " bytes read; %" PRIu64
			" retries because weights had moved (ESTALE)\n", run->experts.x_bytes,
			run->experts.y_bytes, run->experts.retries);
	if (run->options->migrate_ms)
		fprintf(f, "migration: %" PRIu64 " moves, %" PRIu64 " bytes, %.1f us modelled one "
			"after another; %" PRIu64 " given up for lack of room\n",
			run->migration.moves, run->migration.bytes,
			us(run->migration.modelled_ns), run->migration.no_room);
	if (run->options->daemon)
		fprintf(f, "ndpd: %s; %" PRIu64 " loads posted, %" PRIu64 " dropped; experts moved "
			"%" PRIu64 " times\n", run->daemon.attached ? "attached" : "gone",
			run->daemon.posts, run->daemon.dropped, run->moves);
}
