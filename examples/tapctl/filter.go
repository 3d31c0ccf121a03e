package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/tapctl/cluster"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// filter holds the flags that select requests by their properties, and the flag that limits their
// rate.
type filter struct {
	method, path, authority, scheme, to, toNamespace, from string

	pods        *pods             // the targets in a cluster, or nil
	destination *cluster.Resource // in a cluster: the resource of --to, or the target with --from

	headers []string
	maxRPS  int // how many requests of all targets together are shown per second
}

// flags defines the flags in flags. Their values are checked later, by check.
func (f *filter) flags(flags *flag.FlagSet) {
	flags.StringVar(&f.method, "method", "", "only this `method`")
	flags.StringVar(&f.path, "path", "", "only paths that begin with this `prefix`")
	flags.StringVar(&f.authority, "authority", "", "only this `authority`")
	flags.StringVar(&f.scheme, "scheme", "", "only this `scheme`")
	flags.StringVar(&f.to, "to", "", "only endpoints with this label, as `kind/name`: pod/voting-0, or in a cluster deploy/voting")
	flags.StringVar(&f.from, "from", "", "cluster: only requests of this resource, as `kind/name`, which its proxies show")
	flags.StringVar(&f.toNamespace, "to-namespace", "", "only endpoints in this `namespace`")
	flags.Func("header", "only requests with this header field, as `name=value` or, with any value, name; may be repeated",
		func(s string) error {
			f.headers = append(f.headers, s)
			return nil
		})
	// Counts do not depend on this limit, because processes count without sending each request.
	flags.IntVar(&f.maxRPS, "max-rps", 100, "show at most `n` requests a second of all targets together; counts are not bounded")
}

// check returns an error for a flag that has a wrong value.
func (f *filter) check() error {
	if f.maxRPS < 1 {
		return fmt.Errorf("--max-rps %d: it must be at least 1", f.maxRPS)
	}
	// "=value" has no name.
	for _, h := range f.headers {
		if name, _, _ := strings.Cut(h, "="); name == "" {
			return fmt.Errorf("--header %q must be NAME=VALUE or NAME", h)
		}
	}
	if f.from != "" && f.pods == nil {
		return errors.New("--from requires a target in a cluster, such as deploy/web")
	}
	// match reports mistakes in the remaining flags.
	_, err := f.match()
	return err
}

// useCluster sets p as the command's targets, and reads the flags --from and --to. With --from,
// that flag's pods become the targets instead: they are the clients, and only their proxies know
// where requests go.
func (f *filter) useCluster(p *pods) error {
	f.pods = p
	// The order matters: without --to, nothing is left to do.
	switch {
	case f.from != "" && f.to != "":
		return errors.New("--from and --to exclude each other")
	// p.from changes the targets to the clients.
	case f.from != "":
		source, err := p.from(f.from)
		f.destination = &source
		return err
	case f.to == "":
		return nil
	}
	// --to-namespace also says where to look for the resource of --to.
	resources, err := cluster.Parse([]string{f.to}, cmp.Or(f.toNamespace, p.Cluster.Namespace))
	if err == nil && (len(resources) != 1 || resources[0].Name == "") {
		err = fmt.Errorf("%q must be KIND/NAME", f.to)
	}
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	f.destination = &resources[0]
	return nil
}

// perRequest reports whether a flag sets a condition that metrics cannot evaluate, such as
// the method.
func (f *filter) perRequest() bool {
	return f.method+f.path+f.authority+f.scheme != "" || len(f.headers) > 0
}

// toResource returns conditions on an endpoint's labels that only r's pods meet: one for r's
// name, and one for its namespace.
func toResource(r *cluster.Resource) []*pb.ObserveRequest_Match {
	var matches []*pb.ObserveRequest_Match
	// The name of a namespace is its namespace label, which is added below.
	if r.Kind != "namespace" && r.Name != "" {
		matches = append(matches, match.DestinationLabel(r.Label(), r.Name))
	}
	if r.Namespace != "" {
		matches = append(matches, match.DestinationLabel("namespace", r.Namespace))
	}
	return matches
}

// match combines the flags for requests into one condition. A request must match all of the
// flags.
func (f *filter) match() (*pb.ObserveRequest_Match, error) {
	var matches []*pb.ObserveRequest_Match
	if f.method != "" {
		matches = append(matches, match.Method(f.method))
	}
	if f.path != "" {
		matches = append(matches, match.PathPrefix(f.path))
	}
	if f.authority != "" {
		matches = append(matches, match.Authority(f.authority))
	}
	if f.scheme != "" {
		matches = append(matches, match.Scheme(f.scheme))
	}
	// In a cluster, useCluster has parsed --to. Elsewhere it is a plain label.
	switch {
	case f.destination != nil:
		return match.All(append(matches, toResource(f.destination)...)...), nil
	case f.to != "":
		kind, name, ok := strings.Cut(f.to, "/")
		if !ok || kind == "" || name == "" {
			return nil, fmt.Errorf("--to %q must be KIND/NAME, such as pod/voting-0: a label of the endpoint", f.to)
		}
		matches = append(matches, match.DestinationLabel(kind, name))
	}
	if f.toNamespace != "" {
		matches = append(matches, match.DestinationLabel("namespace", f.toNamespace))
	}
	return match.All(matches...), nil
}

// gotowerOnly returns a text that names a flag of f that gotower's tap supports but
// linkerd's does not. It returns "" if such a flag is not set. The only such flag is
// --header.
func (f *filter) gotowerOnly() string {
	if len(f.headers) > 0 {
		return "conditions on header fields (--header)"
	}
	return ""
}

// headerMatches returns a condition for each --header flag.
func (f *filter) headerMatches() []*tappb.HeaderMatch {
	matches := make([]*tappb.HeaderMatch, 0, len(f.headers))
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, "=")
		m := &tappb.HeaderMatch{Name: name, Value: &tappb.HeaderMatch_Exact{Exact: value}}
		// Without "=", any value will do.
		if !ok {
			m.Value = &tappb.HeaderMatch_Present{Present: true}
		}
		matches = append(matches, m)
	}
	return matches
}

// responses holds the flags that select requests by their responses.
type responses struct {
	status   []string
	failures bool // only failed responses
	slower   time.Duration
}

func (r *responses) flags(flags *flag.FlagSet) {
	flags.Func("status", "only this `status`: 404, 5xx, 400-499, or one of gRPC, such as Unavailable; may be repeated",
		func(s string) error {
			r.status = append(r.status, s)
			return nil
		})
	flags.BoolVar(&r.failures, "failures", false,
		"only what failed: no response, a reset (8: its caller cancelled it), 5xx, or a gRPC status of a failure")
	flags.DurationVar(&r.slower, "slower", 0, "only what took longer than this `time`")
}

// match returns the condition on responses that the flags specify, or nil if no flag is
// set.
func (r *responses) match() (*tappb.ResponseMatch, error) {
	if r.slower < 0 {
		return nil, noTime("--slower", r.slower)
	}
	if len(r.status) == 0 && !r.failures && r.slower == 0 {
		return nil, nil //nolint:nilnil // nil means no condition
	}
	m := &tappb.ResponseMatch{Failures: r.failures}
	if r.slower > 0 {
		m.SlowerThan = durationpb.New(r.slower)
	}
	// A name is a gRPC status, and a number or range is an HTTP status.
	for _, s := range r.status {
		if code, ok := grpcCode(s); ok {
			m.GrpcStatus = append(m.GrpcStatus, uint32(code))
			continue
		}
		lo, hi, err := httpStatus(s)
		if err != nil {
			return nil, err
		}
		// The request has room for one range of HTTP statuses only.
		if m.GetMaxStatus() != 0 {
			return nil, fmt.Errorf("--status %s: there can be one of HTTP; write a range, such as 400-499", s)
		}
		m.MinStatus = lo
		m.MaxStatus = hi
	}
	return m, nil
}

// grpcCode returns the gRPC status code with the name s, such as "Unavailable". Case does
// not matter. It returns false for an unknown name.
func grpcCode(s string) (codes.Code, bool) {
	// Unauthenticated is the last code.
	for c := range codes.Unauthenticated + 1 {
		if strings.EqualFold(c.String(), s) {
			return c, true
		}
	}
	return 0, false
}

// httpStatus parses an HTTP status or a range of them: 404, 5xx or 400-499. It returns the
// first and the last status.
func httpStatus(s string) (lo, hi uint32, err error) {
	first, last, isRange := strings.Cut(strings.ToLower(s), "-")
	// 5xx means 500 to 599.
	if class, ok := strings.CutSuffix(first, "xx"); ok && !isRange {
		first = class + "00"
		last = class + "99"
		isRange = true
	}
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 32)
	b, errB := strconv.ParseUint(last, 10, 32)
	if errA != nil || errB != nil || a < 100 || b > 999 || a > b {
		return 0, 0, fmt.Errorf("--status %q must be a status such as 404, 5xx or 400-499, or one of gRPC such as Unavailable", s)
	}
	return uint32(a), uint32(b), nil
}
