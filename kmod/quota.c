// SPDX-License-Identifier: GPL-2.0-only
/*
 * quota.c - how much of a domain's memory each user has, and may have.
 *
 * Charged is what objects are asked to hold, until their memory is free again;
 * what a migration needs in addition is charged to nobody.  The user is the one
 * who opened the node, whoever holds the file now.  CAP_SYS_RESOURCE lifts the
 * limit, not the charge.
 */
#include <linux/capability.h>
#include <linux/slab.h>

#include "ndp.h"

struct ndp_user *ndp_user_get(struct ndp_domain *domain, kuid_t uid)
{
	struct ndp_user *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL);
	struct ndp_user *user;

	if (!fresh)
		return NULL;
	fresh->uid = uid;
	spin_lock(&domain->user_lock);
	list_for_each_entry(user, &domain->users, link) {
		if (uid_eq(user->uid, uid))
			goto found;
	}
	user = fresh;
	fresh = NULL;
	list_add(&user->link, &domain->users);
found:
	user->users++;
	spin_unlock(&domain->user_lock);
	kfree(fresh);
	return user;
}

void ndp_user_put(struct ndp_domain *domain, struct ndp_user *user)
{
	spin_lock(&domain->user_lock);
	if (--user->users)
		user = NULL;
	else
		list_del(&user->link);
	spin_unlock(&domain->user_lock);
	kfree(user);
}

/* With the charge the object takes its own reference to the user. */
int ndp_quota_charge(struct ndp_domain *domain, struct ndp_user *user,
		     u64 bytes)
{
	bool unlimited = capable(CAP_SYS_RESOURCE);
	int r = -EDQUOT;

	spin_lock(&domain->user_lock);
	if (unlimited || !domain->quota_bytes ||
	    (user->used_bytes <= domain->quota_bytes &&
	     bytes <= domain->quota_bytes - user->used_bytes)) {
		user->used_bytes += bytes;
		user->users++;
		r = 0;
	}
	spin_unlock(&domain->user_lock);
	return r;
}

void ndp_quota_uncharge(struct ndp_domain *domain, struct ndp_user *user,
			u64 bytes)
{
	spin_lock(&domain->user_lock);
	user->used_bytes -= bytes;
	spin_unlock(&domain->user_lock);
	ndp_user_put(domain, user);
}

void ndp_quota_query(struct ndp_domain *domain, struct ndp_user *user,
		     u64 *quota_bytes, u64 *used_bytes)
{
	bool unlimited = ns_capable_noaudit(&init_user_ns, CAP_SYS_RESOURCE);

	spin_lock(&domain->user_lock);
	*quota_bytes = unlimited ? 0 : domain->quota_bytes;
	*used_bytes = user->used_bytes;
	spin_unlock(&domain->user_lock);
}
