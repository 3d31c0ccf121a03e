package tap

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

// Invalid numbers are rejected for any process, and the process is not called again.
func TestFollowInvalidNumbers(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]*tappb.WatchRequest{
		"negative duration": {Duration: durationpb.New(-time.Second)},
		"invalid duration":  {Duration: &durationpb.Duration{Seconds: 1, Nanos: 2e9}},
		"NaN":               {Sample: math.NaN()},
		"more than all":     {Sample: 1.5},
		"less than none":    {Sample: -1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range []serving{ours(new(Registry)), linkerds(new(Registry))} {
				var errs []error
				for _, err := range Follow(bounded(t), []Process{start(t, "", s).process(t, "p")}, req) {
					errs = append(errs, err)
				}
				require.Len(t, errs, 1)
				require.Equal(t, codes.InvalidArgument, status.Code(errs[0]), errs[0])
			}
		})
	}
}

func TestFollowManyRequests(t *testing.T) {
	t.Parallel()
	p := start(t, "", linkerds(new(Registry)))
	traffic(t, p.reg, "/")
	for _, err := range Follow(bounded(t), []Process{p.process(t, "p")}, nil) {
		require.NoError(t, err)
		break
	}
}

// Of a process without a rate, no more requests than the maximum are shown.
func TestFollowLinkerdRate(t *testing.T) {
	t.Parallel()
	p := start(t, "", linkerds(new(Registry)))
	traffic(t, p.reg, "/")
	begun, inits := time.Now(), 0
	for seen, err := range Follow(bounded(t), []Process{p.process(t, "p")}, &tappb.WatchRequest{MaxRps: 5, Limit: 8}) {
		require.NoError(t, err)
		if seen.Event.RequestInit != nil {
			inits++
		}
	}
	require.Equal(t, 8, inits)
	require.GreaterOrEqual(t, time.Since(begun), 900*time.Millisecond, "five in the first second")
}

// An invalid rate of one process does not change the rates of the others.
func TestRowMergerInvalidRates(t *testing.T) {
	m := &rowMerger{rows: map[mergedKey]*tappb.Row{}}
	for _, rate := range []float64{math.NaN(), 2, math.Inf(1), -7, math.NaN(), 3} {
		m.add("p", &tappb.TopResponse{Rows: []*tappb.Row{{Path: "/", Rate: rate}}})
	}
	require.InDelta(t, 5, m.top(0).GetRows()[0].GetRate(), 0)
}
