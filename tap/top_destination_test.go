package tap

import (
	"net/netip"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap/tappb"
)

// By destination, requests with the same endpoint are one row. Its quantiles are those
// of all requests, because quantiles of rows could not be added up.
func TestTopByDestination(t *testing.T) {
	rows := newEventCounter(&tappb.TopRequest{ByDestination: true, ByRoute: true})
	for i := range 100 {
		e := Event{
			Direction: Outbound, ID: StreamID{Stream: uint64(i)},
			Source:            netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
			DestinationLabels: map[string]string{"pod": "web-0"},
			RouteLabels:       map[string]string{"route": string(rune('a' + i%7))},
			RequestInit:       &RequestInit{Method: "GET", Path: "/" + string(rune('a'+i%26)), Authority: "web"},
		}
		rows.add(&e)
		rows.add(&Event{ID: e.ID, ResponseInit: &ResponseInit{Status: 200}})
		rows.add(&Event{ID: e.ID, ResponseEnd: &ResponseEnd{SinceRequestInit: time.Duration(i+1) * time.Millisecond}})
	}
	answer := rows.rows.answer(0)
	require.Len(t, answer.GetRows(), 1)
	row := answer.GetRows()[0]
	require.Equal(t, "web-0", row.GetDestination())
	require.Equal(t, pb.TapEvent_OUTBOUND, row.GetDirection())
	require.EqualValues(t, 100, row.GetCount())
	require.Empty(t, row.GetSource()+row.GetMethod()+row.GetPath()+row.GetRoute())
	require.InEpsilon(t, 50*time.Millisecond, row.GetP50().AsDuration(), 0.06)
	require.InEpsilon(t, 95*time.Millisecond, row.GetP95().AsDuration(), 0.06)
	require.InEpsilon(t, 99*time.Millisecond, row.GetP99().AsDuration(), 0.06)
}

// The name of a process is not part of a row, because otherwise each process would have its
// own row.
func TestFollowTopByDestination(t *testing.T) {
	t.Parallel()
	a, b := start(t, "", ours(new(Registry))), start(t, "", ours(new(Registry)))
	traffic(t, a.reg, "/a")
	traffic(t, b.reg, "/b")
	req := often()
	req.ByDestination = true
	for m, err := range FollowTop(bounded(t), []Process{a.process(t, "a"), b.process(t, "b")}, req) {
		require.NoError(t, err)
		require.LessOrEqual(t, len(m.GetRows()), 1, m)
		if len(m.GetRows()) == 1 && m.GetRows()[0].GetCount() > 20 {
			require.Empty(t, m.GetRows()[0].GetSource())
			return
		}
	}
}
