package profiles

import (
	"strings"

	"github.com/gotower/gotower/layer"
)

// search looks for the route of one request. It lives on the stack of whoever
// searches; what it asks the access for it asks when the first condition needs
// it.
type search[Req, Rsp any] struct {
	routes []*served[Req, Rsp]
	access layer.Accessor[Req, Rsp]
	req    Req
	facts  facts
	has    needs
	best   int32 // smallest position whose condition holds
}

// match returns the first route that matches, or none.
func (s *snapshot[Req, Rsp]) match(access layer.Accessor[Req, Rsp], req Req) *served[Req, Rsp] {
	q := search[Req, Rsp]{routes: s.routes, access: access, req: req, best: nowhere}
	q.facts.method, q.facts.path = access.Method(req), access.Path(req)
	q.walk(&s.index.root, q.facts.path)
	if len(s.index.methods) > 0 {
		q.try(s.index.methods[q.facts.method])
	}
	if q.best == nowhere {
		return nil
	}
	return s.routes[q.best]
}

// walk tries the routes of the branches that path leads to. Those that say
// most of the path come first: they are cheap, and often decide.
func (q *search[Req, Rsp]) walk(b *branch, path string) {
	if b.first >= q.best {
		return
	}
	if path == "" {
		q.try(b.here)
	} else if i := strings.IndexByte(b.initials, path[0]); i >= 0 {
		child := b.children[i]
		if rest, ok := strings.CutPrefix(path, child.text); ok {
			q.walk(child, rest)
		}
	}
	if b.rest != nil {
		end := strings.IndexByte(path, '/')
		if end < 0 {
			end = len(path)
		}
		q.walk(b.rest, path[end:])
	}
	q.try(b.below)
}

// try looks for the first of the routes that matches, as far as that would be
// better than what was found.
func (q *search[Req, Rsp]) try(positions []int32) {
	for _, position := range positions {
		if position >= q.best {
			return
		}
		if q.holds(q.routes[position]) {
			q.best = position
			return
		}
	}
}

func (q *search[Req, Rsp]) holds(route *served[Req, Rsp]) bool {
	if missing := route.needs &^ q.has; missing != 0 {
		q.ask(missing)
	}
	return route.match.holds(q.facts)
}

func (q *search[Req, Rsp]) ask(missing needs) {
	if missing&needQuery != 0 {
		q.facts.query = q.access.Query(q.req)
	}
	if missing&needAuthority != 0 {
		q.facts.authority = q.access.Authority(q.req)
	}
	if missing&needHeader != 0 {
		q.facts.header = q.access.RequestHeader(q.req)
	}
	q.has |= missing
}
