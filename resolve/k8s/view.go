package k8s

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gotower/gotower/resolve"
)

// view is what one stream has said of its target.
type view struct {
	*options

	target target
	said   resolve.Update // its Kind is 0 before the first
	amiss  map[string]bool
}

// item is one to yield.
type item struct {
	update resolve.Update
	err    error
}

// items is what the stream has to say of n: what is amiss in a snapshot before
// what that means, and failures after it, for what is known serves whoever
// comes during an outage.
func (v *view) items(n news) []item {
	var list []item
	if n.snapshot != nil {
		u, amiss := v.answer(*n.snapshot, v.target.port)
		fresh := v.unsaid(amiss)
		for _, text := range fresh {
			list = append(list, item{err: fmt.Errorf("k8s: %v: %s", v.target.object, text)})
		}
		same := u.Kind == v.said.Kind && slices.EqualFunc(u.Endpoints, v.said.Endpoints, resolve.Endpoint.Equal)
		if !same || n.back || len(fresh) > 0 { // what follows an error says that it is over
			v.said = u
			u.Endpoints = slices.Clone(u.Endpoints) // the consumer may do with it what it likes
			list = append(list, item{update: u})
		}
	}
	for _, err := range n.errs {
		list = append(list, item{err: err})
	}
	return list
}

// unsaid returns the sentences that are new. Those that are true no more are
// forgotten, and said again when they are true again.
func (v *view) unsaid(amiss []string) []string {
	now := make(map[string]bool, len(amiss))
	for _, text := range amiss {
		now[text] = true
	}
	before := v.amiss
	v.amiss = now
	return slices.DeleteFunc(slices.Sorted(maps.Keys(now)), func(text string) bool { return before[text] })
}
