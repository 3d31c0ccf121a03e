package linkerd

import (
	"errors"
	"fmt"
	"math"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"

	"github.com/gotower/gotower/profiles"
)

// convertRequestMatch returns nil, which is an invalid condition, for one that
// says nothing.
func convertRequestMatch(m *destination.RequestMatch, drop func(error)) profiles.Match {
	switch m := m.GetMatch().(type) {
	case *destination.RequestMatch_All:
		return profiles.All(convertMembers(m.All.GetMatches(), convertRequestMatch, drop))
	case *destination.RequestMatch_Any:
		return profiles.Any(convertMembers(m.Any.GetMatches(), convertRequestMatch, drop))
	case *destination.RequestMatch_Not:
		return convertNot(convertRequestMatch(m.Not, drop))
	case *destination.RequestMatch_Path:
		return profiles.Path(m.Path.GetRegex())
	case *destination.RequestMatch_Method:
		return convertMethod(m.Method, drop)
	}
	return nil
}

func convertResponseMatch(m *destination.ResponseMatch, drop func(error)) profiles.Match {
	switch m := m.GetMatch().(type) {
	case *destination.ResponseMatch_All:
		return profiles.All(convertMembers(m.All.GetMatches(), convertResponseMatch, drop))
	case *destination.ResponseMatch_Any:
		return profiles.Any(convertMembers(m.Any.GetMatches(), convertResponseMatch, drop))
	case *destination.ResponseMatch_Not:
		return convertNot(convertResponseMatch(m.Not, drop))
	case *destination.ResponseMatch_Status:
		// On a small machine an int is 32 bits; what is cut off here is out of
		// range either way.
		return profiles.Status{
			Min: int(min(m.Status.GetMin(), math.MaxInt32)),
			Max: int(min(m.Status.GetMax(), math.MaxInt32)),
		}
	}
	return nil
}

func convertMembers[M any](members []M, convert func(M, func(error)) profiles.Match, drop func(error)) []profiles.Match {
	converted := make([]profiles.Match, 0, len(members))
	for _, m := range members {
		c := convert(m, drop)
		if c == nil {
			drop(errors.New("member of a condition: says nothing"))
			continue
		}
		converted = append(converted, c)
	}
	return converted
}

func convertNot(m profiles.Match) profiles.Match {
	if m == nil {
		return nil
	}
	return profiles.Not{Match: m}
}

func convertMethod(m *http_types.HttpMethod, drop func(error)) profiles.Match {
	switch m := m.GetType().(type) {
	case *http_types.HttpMethod_Registered_:
		name, ok := http_types.HttpMethod_Registered_name[int32(m.Registered)]
		if !ok {
			drop(fmt.Errorf("method %d is not registered", m.Registered))
			return nil
		}
		return profiles.Method(name)
	case *http_types.HttpMethod_Unregistered:
		return profiles.Method(m.Unregistered)
	}
	return nil
}
