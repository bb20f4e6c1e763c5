/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * trace.h - tracepoints: a command was accepted, a DIMM completed its part, an
 * object moved, a DIMM was reset.  Numbers only.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM moendp

#if !defined(NDP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define NDP_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(moendp_submit,
	    TP_PROTO(int domain, u32 op, u32 dimm_mask, u32 nr_parts, u32 tokens),
	    TP_ARGS(domain, op, dimm_mask, nr_parts, tokens),
	    TP_STRUCT__entry(__field(int, domain)
			     __field(u32, op)
			     __field(u32, dimm_mask)
			     __field(u32, nr_parts)
			     __field(u32, tokens)
	    ),
	    TP_fast_assign(__entry->domain = domain;
			   __entry->op = op;
			   __entry->dimm_mask = dimm_mask;
			   __entry->nr_parts = nr_parts;
			   __entry->tokens = tokens;
	    ),
	    TP_printk("ndp%d op=%u dimm_mask=%#x parts=%u tokens=%u",
		      __entry->domain, __entry->op, __entry->dimm_mask,
		      __entry->nr_parts, __entry->tokens)
);

TRACE_EVENT(moendp_complete,
	    TP_PROTO(int domain, u32 dimm, u32 queue, u32 cid, u32 status,
		     u64 modelled_ns),
	    TP_ARGS(domain, dimm, queue, cid, status, modelled_ns),
	    TP_STRUCT__entry(__field(int, domain)
			     __field(u32, dimm)
			     __field(u32, queue)
			     __field(u32, cid)
			     __field(u32, status)
			     __field(u64, modelled_ns)
	    ),
	    TP_fast_assign(__entry->domain = domain;
			   __entry->dimm = dimm;
			   __entry->queue = queue;
			   __entry->cid = cid;
			   __entry->status = status;
			   __entry->modelled_ns = modelled_ns;
	    ),
	    TP_printk("ndp%dd%u queue=%u cid=%u status=%u modelled_ns=%llu",
		      __entry->domain, __entry->dimm, __entry->queue, __entry->cid,
		      __entry->status, __entry->modelled_ns)
);

TRACE_EVENT(moendp_migrate,
	    TP_PROTO(int domain, u64 id, u32 dimm_mask, u64 bytes, u64 modelled_ns,
		     int result),
	    TP_ARGS(domain, id, dimm_mask, bytes, modelled_ns, result),
	    TP_STRUCT__entry(__field(int, domain)
			     __field(u64, id)
			     __field(u32, dimm_mask)
			     __field(u64, bytes)
			     __field(u64, modelled_ns)
			     __field(int, result)
	    ),
	    TP_fast_assign(__entry->domain = domain;
			   __entry->id = id;
			   __entry->dimm_mask = dimm_mask;
			   __entry->bytes = bytes;
			   __entry->modelled_ns = modelled_ns;
			   __entry->result = result;
	    ),
	    TP_printk("ndp%d object=%llu to=%#x bytes=%llu modelled_ns=%llu result=%d",
		      __entry->domain, __entry->id, __entry->dimm_mask,
		      __entry->bytes, __entry->modelled_ns, __entry->result)
);

TRACE_EVENT(moendp_reset,
	    TP_PROTO(int domain, u32 dimm, u32 generation, int result),
	    TP_ARGS(domain, dimm, generation, result),
	    TP_STRUCT__entry(__field(int, domain)
			     __field(u32, dimm)
			     __field(u32, generation)
			     __field(int, result)
	    ),
	    TP_fast_assign(__entry->domain = domain;
			   __entry->dimm = dimm;
			   __entry->generation = generation;
			   __entry->result = result;
	    ),
	    TP_printk("ndp%dd%u generation=%u result=%d", __entry->domain,
		      __entry->dimm, __entry->generation, __entry->result)
);

#endif /* NDP_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
