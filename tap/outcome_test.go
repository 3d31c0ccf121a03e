package tap

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

func TestOutcome(t *testing.T) {
	end := func(change func(*ResponseEnd)) *ResponseEnd {
		e := &ResponseEnd{SinceRequestInit: time.Second, SinceResponseInit: new(time.Millisecond)}
		if change != nil {
			change(e)
		}
		return e
	}
	grpc := func(c codes.Code) *ResponseEnd { return end(func(e *ResponseEnd) { e.GRPCStatus = &c }) }
	none := end(func(e *ResponseEnd) { e.SinceResponseInit = nil })
	reset := end(func(e *ResponseEnd) { e.ResetCode = new(uint32(8)) })
	failures := &tappb.ResponseMatch{Failures: true}
	slower := func(d time.Duration) *tappb.ResponseMatch {
		return &tappb.ResponseMatch{SlowerThan: durationpb.New(d)}
	}
	for name, tt := range map[string]struct {
		m      *tappb.ResponseMatch
		status int
		end    *ResponseEnd
		want   bool
	}{
		"nothing set":                  {&tappb.ResponseMatch{}, 0, none, true},
		"status in":                    {&tappb.ResponseMatch{MinStatus: 400, MaxStatus: 404}, 404, end(nil), true},
		"status at the lower end":      {&tappb.ResponseMatch{MinStatus: 400, MaxStatus: 404}, 400, end(nil), true},
		"status below":                 {&tappb.ResponseMatch{MinStatus: 400, MaxStatus: 404}, 399, end(nil), false},
		"status above":                 {&tappb.ResponseMatch{MinStatus: 400, MaxStatus: 404}, 405, end(nil), false},
		"status, no response":          {&tappb.ResponseMatch{MinStatus: 1, MaxStatus: 999}, 0, none, false},
		"grpc":                         {&tappb.ResponseMatch{GrpcStatus: []uint32{5, 14}}, 200, grpc(14), true},
		"grpc other":                   {&tappb.ResponseMatch{GrpcStatus: []uint32{5, 14}}, 200, grpc(13), false},
		"grpc ok":                      {&tappb.ResponseMatch{GrpcStatus: []uint32{0}}, 200, grpc(0), true},
		"grpc, not grpc":               {&tappb.ResponseMatch{GrpcStatus: []uint32{0}}, 200, end(nil), false},
		"failure 500":                  {failures, 500, end(nil), true},
		"failure 499":                  {failures, 499, end(nil), false},
		"failure, no response":         {failures, 0, none, true},
		"failure, reset":               {failures, 200, reset, true},
		"failure, grpc UNKNOWN":        {failures, 200, grpc(2), true},
		"failure, grpc DEADLINE":       {failures, 200, grpc(4), true},
		"failure, grpc INTERNAL":       {failures, 200, grpc(13), true},
		"failure, grpc UNAVAILABLE":    {failures, 200, grpc(14), true},
		"failure, grpc DATA_LOSS":      {failures, 200, grpc(15), true},
		"failure, grpc NOT_FOUND":      {failures, 200, grpc(5), false},
		"failure, grpc OK":             {failures, 200, grpc(0), false},
		"slower":                       {slower(time.Second - 1), 200, end(nil), true},
		"slower, just as slow":         {slower(time.Second), 200, end(nil), false},
		"slower than nothing":          {slower(0), 200, end(nil), true},
		"all that is set":              {&tappb.ResponseMatch{MinStatus: 500, MaxStatus: 599, Failures: true, SlowerThan: durationpb.New(0)}, 503, end(nil), true},
		"all that is set, one is not":  {&tappb.ResponseMatch{MinStatus: 500, MaxStatus: 599, Failures: true, SlowerThan: durationpb.New(time.Hour)}, 503, end(nil), false},
		"all that is set, the grpc is": {&tappb.ResponseMatch{MinStatus: 200, MaxStatus: 200, GrpcStatus: []uint32{1}}, 200, grpc(2), false},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := outcomeOf(tt.m)
			require.NoError(t, err)
			require.Equal(t, tt.want, o.holds(tt.status, tt.end))
		})
	}
	o, err := outcomeOf(nil)
	require.NoError(t, err)
	require.Nil(t, o)
}
