// SPDX-License-Identifier: GPL-2.0-only
/*
 * mmap.c - mappings of objects: weights as one contiguous range whatever their
 * placement, IO objects replica after replica.
 *
 * The page tables do the striping.  A fault reads the map under map_rwsem and
 * fills in at most the 2 MiB around it; whoever swaps the map, or loses the
 * object, takes all mappings away under the same lock, so that a page is never
 * mapped that is not the object's.  No page has a struct page: a mapping is for
 * loads and stores of the CPU and for nothing else.
 */
#include <linux/math64.h>

#include "compat.h"
#include "ndp.h"

/* @pos: of the fault's page in the span. */
static vm_fault_t ndp_span_insert(const struct ndp_span *span, u64 pos,
				  u64 bytes, struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long addr = vmf->address & PAGE_MASK;
	unsigned long low, high, at;
	vm_fault_t ret;
	phys_addr_t phys;

	phys = span->ext->dimm->dram_phys + span->ext->off + pos;

	ret = vmf_insert_pfn(vma, addr, PHYS_PFN(phys));
	if (ret != VM_FAULT_NOPAGE)
		return ret;
	low = max(vma->vm_start, addr & PMD_MASK);
	low = max_t(u64, low, addr - min_t(u64, pos, addr));
	high = min(vma->vm_end, (addr & PMD_MASK) + PMD_SIZE);
	high = min_t(u64, high, addr + bytes - pos);
	for (at = low; at < high; at += PAGE_SIZE) {
		if (at != addr &&
		    vmf_insert_pfn(vma, at, PHYS_PFN(phys + at - addr)) !=
		    VM_FAULT_NOPAGE)
			break;
	}
	return ret;
}

/* While the window is switched off (reset.c) this waits. */
static vm_fault_t ndp_bo_insert(struct ndp_bo *bo, struct vm_fault *vmf)
{
	u64 byte = (vmf->pgoff - bo->map_page) << PAGE_SHIFT;
	const struct ndp_span *span;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	struct ndp_dimm *dimm;

	span = ndp_map_find(bo->map, div64_u64(byte, bo->stride));
	dimm = span->ext->dimm;
	if (down_read_killable(&dimm->hw_sem))
		return VM_FAULT_SIGBUS;
	if (!dimm->hw_gone)
		ret = ndp_span_insert(span, byte - span->first * bo->stride,
				      span->nr * bo->stride, vmf);
	up_read(&dimm->hw_sem);
	return ret;
}

static vm_fault_t ndp_bo_fault(struct vm_fault *vmf)
{
	struct ndp_bo *bo = vmf->vma->vm_private_data;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	down_read(&bo->map_rwsem);
	if (!bo->lost)
		ret = ndp_bo_insert(bo, vmf);
	up_read(&bo->map_rwsem);
	return ret;
}

/* A mapping was split: there is one more now. */
static void ndp_bo_vma_open(struct vm_area_struct *vma)
{
	struct ndp_bo *bo = vma->vm_private_data;

	ndp_bo_get(bo);
	down_write(&bo->map_rwsem);
	bo->nr_vmas++;
	up_write(&bo->map_rwsem);
}

static void ndp_bo_vma_close(struct vm_area_struct *vma)
{
	struct ndp_bo *bo = vma->vm_private_data;

	down_write(&bo->map_rwsem);
	bo->nr_vmas--;
	up_write(&bo->map_rwsem);
	ndp_bo_put(bo);
}

static int ndp_bo_vma_mremap(struct vm_area_struct *vma)
{
	return -EPERM;
}

static const struct vm_operations_struct ndp_bo_vm_ops = {
	.open = ndp_bo_vma_open,
	.close = ndp_bo_vma_close,
	.mremap = ndp_bo_vma_mremap,
	.fault = ndp_bo_fault,
};

/* map_rwsem held for writing. */
static int ndp_bo_mmap(struct ndp_bo *bo, struct vm_area_struct *vma)
{
	unsigned long clear = VM_MAYEXEC;

	if (bo->lost)
		return -ENODEV;
	if (bo->sealed) {
		if (vma->vm_flags & VM_WRITE)
			return -EPERM;
		clear |= VM_MAYWRITE;
	}
	ndp_vm_flags_mod(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP |
			 VM_DONTCOPY, clear);
	vma->vm_ops = &ndp_bo_vm_ops;
	vma->vm_private_data = bo;
	bo->nr_vmas++;
	return 0;
}

int ndp_file_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct ndp_file *file = filp->private_data;
	struct ndp_bo *bo;
	int r;

	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	bo = ndp_bo_by_page(file, vma->vm_pgoff);
	if (!bo)
		return -EINVAL;
	if (vma_pages(vma) > ndp_bo_map_pages(bo) -
			     (vma->vm_pgoff - bo->map_page)) {
		r = -EINVAL;
		goto err;
	}
	if (down_write_killable(&bo->map_rwsem)) {
		r = -EINTR;
		goto err;
	}
	r = ndp_bo_mmap(bo, vma);
	up_write(&bo->map_rwsem);
	if (r < 0)
		goto err;
	return 0;	/* with the reference */
err:
	ndp_bo_put(bo);
	return r;
}

/* map_rwsem held for writing: no page of it is mapped until that ends. */
void ndp_bo_unmap(struct ndp_bo *bo)
{
	unmap_mapping_range(bo->domain->inode->i_mapping,
			    bo->map_page << PAGE_SHIFT, bo->total_bytes, 1);
}
