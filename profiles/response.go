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

// The results of a condition on a response.
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
	// All is decided by the first member that does not hold, and Any by the first one that does.
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

// compileResponses compiles the members of an All or Any. It leaves out invalid ones, and returns an error if none is
// left.
func compileResponses(members []Match, decisive truth, drop func(error)) (responseMatcher, error) {
	joined := responseJoin{decisive: decisive}
	for _, m := range members {
		compiled, err := compileResponse(m, drop)
		// One bad member must not disable the others.
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

// holds returns the decisive value if one member has it; see responseJoin.
func (j responseJoin) holds(r response) truth {
	// yes − no is yes, and yes − yes is no: the opposite of the decisive value.
	total := yes - j.decisive
	// A later member may still be decisive after an open one.
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

// responseNot is a compiled Not. The opposite of open is open.
type responseNot struct{ member responseMatcher }

// holds returns the opposite of the member's result.
func (n responseNot) holds(r response) truth {
	if a := n.member.holds(r); a != open {
		// no is 0 and yes is 1.
		return yes - a
	}
	return open
}

// compileResponse checks the range. The condition is its own compiled form.
func (s Status) compileResponse() (responseMatcher, error) {
	if s.Min < 100 || s.Min > 999 || s.Max < 100 || s.Max > 999 {
		return nil, fmt.Errorf("status %d to %d is not within 100 to 999", s.Min, s.Max)
	}
	return s, nil
}

// holds is never open, because the status comes with the headers.
func (s Status) holds(r response) truth { return truthOf(s.Min <= r.status && r.status <= s.Max) }

const maxGRPC = 16 // UNAUTHENTICATED, the largest gRPC status

// compileResponse checks the range. The condition is its own compiled form.
func (g GRPCStatus) compileResponse() (responseMatcher, error) {
	if g.Min > g.Max || g.Max > maxGRPC {
		return nil, fmt.Errorf("gRPC status %d to %d is not a range within 0 to %d", g.Min, g.Max, maxGRPC)
	}
	return g, nil
}

// holds compares the gRPC status. It is open as long as the status may still come.
func (g GRPCStatus) holds(r response) truth {
	// A gRPC status is in the trailers, or in the headers of a response without a body.
	fields := r.trailer
	if fields == nil {
		fields = r.header
	}
	code, ok := grpcCode(fields)
	// The status may still come with the trailers.
	if !ok && r.trailer == nil {
		return open
	}
	return truthOf(ok && g.Min <= code && code <= g.Max)
}

// trailerCondition is a compiled [Trailer]. It is open until the trailers have arrived. A gRPC
// response may send them as its header.
type trailerCondition struct{ *headerCondition }

// compileResponse compiles the condition like one on a header.
func (t Trailer) compileResponse() (responseMatcher, error) {
	field, err := compileField("trailer", Header{Name: t.Name, Value: t.Value})
	return trailerCondition{field}, err
}

// holds evaluates the condition on the trailers. It is open until they have arrived.
func (t trailerCondition) holds(r response) truth {
	fields := r.trailer
	if fields == nil {
		// Without a gRPC status in the headers, trailers follow.
		if _, ok := grpcCode(r.header); !ok {
			return open
		}
		fields = r.header // gRPC sent the trailers as the header
	}
	return truthOf(t.headerCondition.holds(facts{header: fields}))
}
