package profiles

import (
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// response has the values of a response that conditions read. trailer is nil before the end of the
// response. header is nil at the end, because conditions on the header are decided before.
type response struct {
	status          int
	header, trailer layer.Header
}

// truth is the value of a condition: yes, no or open.
type truth uint8

const (
	no truth = iota
	yes
	open // unknown until the trailers arrive
)

func truthOf(holds bool) truth {
	if holds {
		return yes
	}
	return no
}

// responseMatcher is a compiled condition on a response.
type responseMatcher interface {
	holds(r response) truth
}

// responseLeaf is implemented by the conditions on responses that have no members.
type responseLeaf interface {
	compileResponse(c *compiler) (responseMatcher, error)
}

// compileResponse compiles a condition on responses. Unlike compileMatch, it returns an
// error for an All or Any without a valid member, as linkerd does.
func compileResponse(m Match, c *compiler) (responseMatcher, error) {
	switch m := m.(type) {
	case nil:
		return nil, errNoCondition
	case All:
		return compileResponses(m, no, c)
	case Any:
		return compileResponses(m, yes, c)
	case Not:
		member, err := compileResponse(m.Match, c)
		if err != nil {
			return nil, fmt.Errorf("not: %w", err)
		}
		return responseNot{member}, nil
	case responseLeaf:
		return m.compileResponse(c)
	}
	return nil, fmt.Errorf("%T is not a condition on a response", m)
}

func compileResponses(members []Match, decisive truth, c *compiler) (responseMatcher, error) {
	joined := responseJoin{decisive: decisive}
	for _, m := range members {
		compiled, err := compileResponse(m, c)
		if err != nil {
			c.drop(fmt.Errorf("member of a response class: %w", err))
			continue
		}
		joined.members = append(joined.members, compiled)
	}
	if len(joined.members) == 0 {
		return nil, errors.New("no valid member")
	}
	return joined, nil
}

// responseJoin is a compiled All or Any. The first member with the value decisive decides.
type responseJoin struct {
	members  []responseMatcher
	decisive truth // no for All, yes for Any
}

func (j responseJoin) holds(r response) truth {
	all := yes - j.decisive
	for _, m := range j.members {
		switch m.holds(r) {
		case j.decisive:
			return j.decisive
		case open:
			all = open
		case no, yes:
		}
	}
	return all
}

type responseNot struct{ member responseMatcher }

func (n responseNot) holds(r response) truth {
	if a := n.member.holds(r); a != open {
		return yes - a
	}
	return open
}

func (s Status) compileResponse(*compiler) (responseMatcher, error) {
	if s.Min < 100 || s.Min > 999 || s.Max < 100 || s.Max > 999 {
		return nil, fmt.Errorf("status %d to %d is not within 100 to 999", s.Min, s.Max)
	}
	return s, nil
}

func (s Status) holds(r response) truth { return truthOf(s.Min <= r.status && r.status <= s.Max) }

const maxGRPC = 16 // UNAUTHENTICATED, the largest gRPC status

func (g GRPCStatus) compileResponse(*compiler) (responseMatcher, error) {
	if g.Min > g.Max || g.Max > maxGRPC {
		return nil, fmt.Errorf("gRPC status %d to %d is not a range within 0 to %d", g.Min, g.Max, maxGRPC)
	}
	return g, nil
}

func (g GRPCStatus) holds(r response) truth {
	fields := r.trailer
	if fields == nil {
		fields = r.header
	}
	code, ok := grpcCode(fields)
	if !ok && r.trailer == nil {
		return open
	}
	return truthOf(ok && g.Min <= code && code <= g.Max)
}

// trailerCondition is a compiled Trailer.
type trailerCondition struct{ headerCondition }

func (t Trailer) compileResponse(c *compiler) (responseMatcher, error) {
	field, err := compileField("trailer", t.Name, t.Value, c)
	return trailerCondition{field}, err
}

func (t trailerCondition) holds(r response) truth {
	fields := r.trailer
	if fields == nil {
		if _, ok := grpcCode(r.header); !ok {
			return open
		}
		fields = r.header // gRPC sent the trailers as the header
	}
	return truthOf(t.headerCondition.holds(facts{header: fields}))
}
