package profiles

import (
	"errors"
	"fmt"
	"net/textproto"

	"github.com/gotower/gotower/layer"
)

// response is what conditions know of a response. Of one of which nothing but
// the head has come trailer is nil; of one that ended header is nil, because
// by then all is decided that it could say.
type response struct {
	status          int
	header, trailer layer.Header
}

// truth is whether a condition holds.
type truth uint8

const (
	no truth = iota
	yes
	open // the trailers will say
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

// responseLeaf is a Match without members, on a response.
type responseLeaf interface {
	compileResponse() (responseMatcher, error)
}

// compileResponse is compileMatch for responses. All and Any without a valid
// member are invalid here, which is how linkerd has it.
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
	return nil, fmt.Errorf("%T is no condition on a response", m)
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

// responseJoin is All or Any: the first member whose answer is decisive ends it.
type responseJoin struct {
	members  []responseMatcher
	decisive truth // no or yes
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

func (s Status) compileResponse() (responseMatcher, error) {
	if s.Min < 100 || s.Min > 999 || s.Max < 100 || s.Max > 999 {
		return nil, fmt.Errorf("status %d to %d is not within 100 to 999", s.Min, s.Max)
	}
	return s, nil
}

func (s Status) holds(r response) truth { return truthOf(s.Min <= r.status && r.status <= s.Max) }

func (g GRPCStatus) compileResponse() (responseMatcher, error) {
	if g.Min > g.Max || g.Max > maxGRPC {
		return nil, fmt.Errorf("gRPC status %d to %d is no range within 0 to %d", g.Min, g.Max, maxGRPC)
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

// trailerHas is a Trailer made ready.
type trailerHas struct{ headerHas }

func (t Trailer) compileResponse() (responseMatcher, error) {
	if !isToken(t.Name) {
		return nil, fmt.Errorf("trailer %q: the name is not a token", t.Name)
	}
	value, err := compileText(t.Value, false)
	if err != nil {
		return nil, fmt.Errorf("trailer %q: %w", t.Name, err)
	}
	return trailerHas{headerHas{textproto.CanonicalMIMEHeaderKey(t.Name), value}}, nil
}

func (t trailerHas) holds(r response) truth {
	fields := r.trailer
	if fields == nil {
		if _, ok := grpcCode(r.header); !ok {
			return open
		}
		fields = r.header // the response is nothing but trailers
	}
	return truthOf(t.headerHas.holds(facts{header: fields}))
}
