package view

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// filter selects the requests that a page shows.
type filter struct {
	*tappb.WatchRequest
	unrouted bool // whether only requests without a route are shown; tap has no such condition
}

// noRoute is the name that the page shows for requests without a route. routeLabel is the label
// with a route name.
const (
	noRoute    = "[DEFAULT]"
	routeLabel = "route"
)

// maxInspected is how many live requests a page receives a second. The page shows only some of
// them.
const maxInspected = 1000

// readFilter parses a page's query. Its parameters are method, authority, route, path, status,
// failures and slower. The parameter path is a prefix, or "=" with a whole path. status is one of
// 1xx to 5xx. failures is 1. slower is a duration such as 250ms. A request is shown if all
// parameters match.
func readFilter(query string) (filter, error) {
	q, err := url.ParseQuery(query)
	if err != nil {
		return filter{}, err
	}
	f := filter{WatchRequest: &tappb.WatchRequest{Fields: true, Explain: true, MaxRps: maxInspected}}
	var conditions []*pb.ObserveRequest_Match
	for name, values := range q {
		value := values[0]
		if len(values) > 1 {
			return filter{}, fmt.Errorf("%s is set %d times", name, len(values))
		}
		if name == "route" && value == noRoute {
			f.unrouted = true
			continue
		}
		if c := condition(name, value); c != nil {
			conditions = append(conditions, c)
			continue
		}
		// Any other parameter is a condition on the response.
		if f.Response == nil {
			f.Response = new(tappb.ResponseMatch)
		}
		if err := responseFilter(f.Response, name, value); err != nil {
			return filter{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	f.Match = match.All(conditions...)
	return f, nil
}

// condition converts a query parameter of the page to a condition on requests. It returns nil for
// a condition on the response, and for an unknown parameter.
func condition(name, value string) *pb.ObserveRequest_Match {
	switch name {
	case "method":
		return match.Method(strings.ToUpper(value))
	case "authority":
		return match.Authority(value)
	case "route":
		label := match.RouteLabel(routeLabel, value)
		if slash := strings.IndexByte(value, '/'); slash >= 0 { // it may be a pattern of http.ServeMux or a method of gRPC
			// In a pattern, wildcards begin with "{".
			path, _, _ := strings.Cut(value[slash:], "{")
			return match.Any(label, match.PathPrefix(path))
		}
		return label
	case "path":
		if whole, ok := strings.CutPrefix(value, "="); ok {
			return match.Path(whole)
		}
		return match.PathPrefix(value)
	}
	return nil
}

// omits reports whether the page leaves out e's request, because the filter selects only requests
// without a route and this one has a route. e must contain a RequestInit.
func (f *filter) omits(e *tap.Event) bool { return f.unrouted && e.RouteLabels[routeLabel] != "" }

// responseFilter adds the condition of a query parameter to m.
func responseFilter(m *tappb.ResponseMatch, name, value string) error {
	switch name {
	case "status":
		// Such as 5xx, which means 500 to 599.
		if len(value) != 3 || value[0] < '1' || value[0] > '5' || value[1:] != "xx" {
			return fmt.Errorf("%q must be 1xx, 2xx, 3xx, 4xx or 5xx", value)
		}
		m.MinStatus = uint32(value[0]-'0') * 100
		m.MaxStatus = m.GetMinStatus() + 99
	case "failures":
		if value != "1" {
			return fmt.Errorf("%q must be 1", value)
		}
		m.Failures = true
	case "slower":
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q must be a positive duration such as 250ms", value)
		}
		m.SlowerThan = durationpb.New(d)
	default:
		return errors.New("unknown filter")
	}
	return nil
}
