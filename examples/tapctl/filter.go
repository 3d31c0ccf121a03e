package main

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// filter has the flags that select requests and limit their number.
type filter struct {
	method, path, authority, scheme, to, toNamespace string

	headers []string
	maxRPS  int
}

func (f *filter) flags(flags *flag.FlagSet) {
	flags.StringVar(&f.method, "method", "", "only this `method`")
	flags.StringVar(&f.path, "path", "", "only paths that begin with this `prefix`")
	flags.StringVar(&f.authority, "authority", "", "only this `authority`")
	flags.StringVar(&f.scheme, "scheme", "", "only this `scheme`")
	flags.StringVar(&f.to, "to", "", "only endpoints with this label, as `kind/name`: pod/voting-0")
	flags.StringVar(&f.toNamespace, "to-namespace", "", "only endpoints in this `namespace`")
	flags.Func("header", "only requests with this header field, as `name=value` or, with any value, name; may be repeated",
		func(s string) error {
			f.headers = append(f.headers, s)
			return nil
		})
	flags.IntVar(&f.maxRPS, "max-rps", 100, "show at most `n` requests a second of all targets together; counts are not bounded")
}

func (f *filter) check() error {
	if f.maxRPS < 1 {
		return fmt.Errorf("--max-rps %d: it must be at least 1", f.maxRPS)
	}
	for _, h := range f.headers {
		if name, _, _ := strings.Cut(h, "="); name == "" {
			return fmt.Errorf("--header %q must be NAME=VALUE or NAME", h)
		}
	}
	_, err := f.match()
	return err
}

// match returns all conditions on requests as one.
func (f *filter) match() (*pb.ObserveRequest_Match, error) {
	var all []*pb.ObserveRequest_Match
	if f.method != "" {
		all = append(all, match.Method(f.method))
	}
	if f.path != "" {
		all = append(all, match.PathPrefix(f.path))
	}
	if f.authority != "" {
		all = append(all, match.Authority(f.authority))
	}
	if f.scheme != "" {
		all = append(all, match.Scheme(f.scheme))
	}
	if f.to != "" {
		kind, name, ok := strings.Cut(f.to, "/")
		if !ok || kind == "" || name == "" {
			return nil, fmt.Errorf("--to %q must be KIND/NAME, such as pod/voting-0: a label of the endpoint", f.to)
		}
		all = append(all, match.DestinationLabel(kind, name))
	}
	if f.toNamespace != "" {
		all = append(all, match.DestinationLabel("namespace", f.toNamespace))
	}
	return match.All(all...), nil
}

// gotowerOnly names the conditions that linkerd's tap does not support. It returns "" if
// it supports all of them.
func (f *filter) gotowerOnly() string {
	if len(f.headers) > 0 {
		return "conditions on header fields (--header)"
	}
	return ""
}

// headerMatches returns the conditions on header fields.
func (f *filter) headerMatches() []*tappb.HeaderMatch {
	all := make([]*tappb.HeaderMatch, 0, len(f.headers))
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, "=")
		m := &tappb.HeaderMatch{Name: name, Value: &tappb.HeaderMatch_Exact{Exact: value}}
		if !ok {
			m.Value = &tappb.HeaderMatch_Present{Present: true}
		}
		all = append(all, m)
	}
	return all
}

// responses has the flags that select responses.
type responses struct {
	status   []string
	failures bool
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

// match returns the condition on responses, or nil if no flag is set.
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
	for _, s := range r.status {
		if code, ok := grpcCode(s); ok {
			m.GrpcStatus = append(m.GrpcStatus, uint32(code))
			continue
		}
		lo, hi, err := httpStatus(s)
		if err != nil {
			return nil, err
		}
		if m.GetMaxStatus() != 0 {
			return nil, fmt.Errorf("--status %s: there can be one of HTTP; write a range, such as 400-499", s)
		}
		m.MinStatus, m.MaxStatus = lo, hi
	}
	return m, nil
}

// grpcCode returns the gRPC code with this name.
func grpcCode(s string) (codes.Code, bool) {
	for c := range codes.Unauthenticated + 1 {
		if strings.EqualFold(c.String(), s) {
			return c, true
		}
	}
	return 0, false
}

// httpStatus parses a status or a range of statuses: 404, 5xx or 400-499.
func httpStatus(s string) (lo, hi uint32, err error) {
	from, to, isRange := strings.Cut(strings.ToLower(s), "-")
	if class, ok := strings.CutSuffix(from, "xx"); ok && !isRange {
		from, to, isRange = class+"00", class+"99", true
	}
	if !isRange {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 32)
	b, errB := strconv.ParseUint(to, 10, 32)
	if errA != nil || errB != nil || a < 100 || b > 999 || a > b {
		return 0, 0, fmt.Errorf("--status %q must be a status such as 404, 5xx or 400-499, or one of gRPC such as Unavailable", s)
	}
	return uint32(a), uint32(b), nil
}
