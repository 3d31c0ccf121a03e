package profiles

import (
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// response holds the response values that conditions read. Before the response ends, trailer is
// nil. Afterwards, header is nil, because no condition reads it then.
type response struct {
	status          int
	header, trailer layer.Header
}

// truth is what a condition on a response evaluates to: yes, no, or open. It is open if the
// condition needs the trailers and these have not arrived.
type truth uint8

const (
	no truth = iota
	yes
	open // unknown until the trailers arrive
)

// truthOf returns yes or no.
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

// responseLeaf is a condition on responses that does not combine other conditions, such as
// [Status].
type responseLeaf interface {
	compileResponse() (responseMatcher, error)
}

// compileResponse compiles a condition on responses. It leaves out invalid members of an
// All or Any. Unlike compileMatch, it returns an error if no valid member is left, as
// linkerd does.
func compileResponse(m Match, drop func(error)) (responseMatcher, error) {
	switch m := m.(type) {
	case nil:
		return nil, errNoCondition
	case All:
		return compileResponses(m, no, drop)
	case Any:
		return compileResponses(m, yes, drop)
	case Not:
		member, err := compileResponse(m.Match, drop)
		if err != nil {
			return nil, fmt.Errorf("not: %w", err)
		}
		return responseNot{member}, nil
	case responseLeaf:
		return m.compileResponse()
	}
	return nil, fmt.Errorf("%T is not a condition on a response", m)
}

func compileResponses(members []Match, decisive truth, drop func(error)) (responseMatcher, error) {
	joined := responseJoin{decisive: decisive}
	for _, m := range members {
		compiled, err := compileResponse(m, drop)
		if err != nil {
			drop(fmt.Errorf("member of a response class: %w", err))
			continue
		}
		joined.members = append(joined.members, compiled)
	}
	if len(joined.members) == 0 {
		return nil, errors.New("no valid member")
	}
	return joined, nil
}

// responseJoin is a compiled All or Any. decisive is the value that settles the result as soon as
// one alternative has it: no for an All, yes for an Any. Without it, the result is open if a member
// is open, and otherwise yes for an All and no for an Any.
type responseJoin struct {
	members  []responseMatcher
	decisive truth // no for All, yes for Any
}

func (j responseJoin) holds(r response) truth {
	total := yes - j.decisive
	for _, m := range j.members {
		switch m.holds(r) {
		case j.decisive:
			return j.decisive
		case open:
			total = open
		case no, yes:
		}
	}
	return total
}

type responseNot struct{ member responseMatcher }

func (n responseNot) holds(r response) truth {
	if a := n.member.holds(r); a != open {
		return yes - a
	}
	return open
}

func (s Status) compileResponse() (responseMatcher, error) {
	if s.Min < 100 || s.Min > 999 || s.Max < 100 || s.Max > 999 {
		return nil, fmt.Errorf("status %d to %d is not within 100 to 999", s.Min, s.Max)
	}
	return s, nil
}

func (s Status) holds(r response) truth { return truthOf(s.Min <= r.status && r.status <= s.Max) }

const maxGRPC = 16 // UNAUTHENTICATED, the largest gRPC status

func (g GRPCStatus) compileResponse() (responseMatcher, error) {
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

// trailerCondition is a compiled [Trailer]. It is open until the trailers have arrived. A gRPC
// response may send them as its header.
type trailerCondition struct{ *headerCondition }

func (t Trailer) compileResponse() (responseMatcher, error) {
	field, err := compileField("trailer", Header{Name: t.Name, Value: t.Value})
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
