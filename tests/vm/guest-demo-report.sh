#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What ndpd did for the programs of `make demo`, from its metrics, which were taken one after the
# other while the programs ran:
#
#   guest-demo-report.sh FILE...
#
# "Before" ends and "after" begins where the program that attached first has posted half of its
# loads. Those who have gone leave no metrics: what counts is the last that was seen of each. Shares
# of tokens are means, before the shift and over the second half of what follows.
cat "$@" | awk '
	# NAME{LABEL="VALUE",...} NUMBER
	function label(name,   at) {
		if (!match($1, "[{,]" name "=\"[^\"]*\""))
			return ""
		at = substr($1, RSTART + 1, RLENGTH - 1)
		sub(/^[^"]*"/, "", at)
		sub(/"$/, "", at)
		return at
	}
	/^ndpd_clients / { n++ }
	/^ndp_client_posts_total\{/ {
		c = label("client")
		if (!(c in posts))
			order[++clients] = c
		posts[c] = $2
		model[c] = label("model")
		at[n, c] = $2
	}
	/^ndp_client_dropped_posts_total\{/ { dropped[label("client")] = $2 }
	/^ndp_model_migrations_total\{/ { moves[label("client"), label("kind")] = $2 }
	/^ndp_model_migration_rollbacks_total\{/ { rollbacks[label("client")] = $2 }
	/^ndp_model_hot_coverage_ratio\{/ { covered[n, label("client")] = $2 }
	/^ndp_model_hot_coverage_possible_ratio\{/ { possible[n, label("client")] = $2 }
	/^ndp_model_predicted_hot_coverage_ratio\{/ { predicted[n, label("client")] = $2 }
	/^ndp_model_actual_hot_coverage_ratio\{/ { hottest[n, label("client")] = $2 }
	/^ndp_model_chance_hot_coverage_ratio\{/ { chance[label("client")] = $2 }
	/^ndp_dimm_tokens_total\{/ {
		d = label("dimm")
		tokens[n, d] = $2
		if (d + 1 > dimms)
			dimms = d + 1
	}

	# The busiest DIMM, as a share of all tokens between two moments.
	function busiest(from, to,   d, all, most, t) {
		for (d = 0; d < dimms; d++) {
			t = tokens[to, d] - tokens[from, d]
			all += t
			if (t > most)
				most = t
		}
		return all ? sprintf("%.1f %%", 100 * most / all) : "none"
	}
	# In % of the tokens of program c.
	function mean(share, c, from, to,   i, sum, seen) {
		for (i = from; i <= to; i++)
			if ((i, c) in at && at[i, c] > 0) {
				sum += share[i, c]
				seen++
			}
		return seen ? sprintf("%.1f", 100 * sum / seen) : "?"
	}
	END {
		if (!clients) {
			print "  nobody was attached to ndpd"
			exit 1
		}
		printf "  %-20s %7s %8s %9s %9s %10s %10s\n", "program", "loads", "dropped", "prefetch", \
			"relayout", "rebalance", "rollbacks"
		for (i = 1; i <= clients; i++) {
			c = order[i]
			printf "  %-20s %7d %8d %9d %9d %10d %10d\n", c " (" model[c] ")", posts[c], \
				dropped[c], moves[c, "prefetch"], moves[c, "relayout"], \
				moves[c, "rebalance"], rollbacks[c]
		}
		first = order[1]
		for (half = 1; half < n && at[half, first] < posts[first] / 2; half++)
			;
		for (i = 1; i <= clients; i++) {
			c = order[i]
			for (last = n; last > 1 && !((last, c) in at); last--)
				;
			later = int((half + last + 1) / 2)
			print "  tokens that the predicted hot experts got, program " c ": before the shift " \
				mean(predicted, c, 1, half) " %, at the end " \
				mean(predicted, c, later, last) " % (by chance " \
				sprintf("%.1f", 100 * chance[c]) " %, chosen with hindsight for each step " \
				mean(hottest, c, 1, last) " %)"
			if (possible[last, c] > 0)
				print "  tokens of experts in GPU memory, program " c ": before the shift " \
					mean(covered, c, 1, half) " %, at the end " \
					mean(covered, c, later, last) " %, possible " \
					mean(possible, c, later, last) " %"
		}
		printf "  tokens on the busiest of %d DIMMs: before the shift %s, after it %s\n", dimms, \
			busiest(1, half), busiest(half, n)
	}'
