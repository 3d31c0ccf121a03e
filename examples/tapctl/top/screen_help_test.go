package top

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

var update = flag.Bool("update", false, "write the golden views anew")

// asked is a source without requests that records what the model requests.
type asked struct {
	reqs    []*tappb.WatchRequest
	stopped int
}

func (a *asked) watch(_ int, req *tappb.WatchRequest) (stop func()) {
	a.reqs = append(a.reqs, req)
	return func() { a.stopped++ }
}

// noon is when everything happens.
func noon() time.Time { return time.Date(2026, 1, 2, 12, 0, 0, 345000000, time.UTC) }

func newScreen(width, height int) (*model, *asked) {
	a := &asked{}
	m := newModel(Config{
		Title: "127.0.0.1:4190 127.0.0.1:4290", Request: &tappb.TopRequest{},
		Processes: []tap.Process{{Name: "127.0.0.1:4190"}, {Name: "127.0.0.1:4290"}},
	}, a)
	m.now = noon
	m.Init()
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return m, a
}

// press presses keys, which are named as bubbletea names them.
func press(m *model, keys ...string) (last tea.Cmd) {
	named := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight,
		"pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "home": tea.KeyHome, "end": tea.KeyEnd, "backspace": tea.KeyBackspace,
	}
	for _, k := range keys {
		switch code, isNamed := named[k]; {
		case isNamed:
			_, last = m.Update(tea.KeyPressMsg{Code: code})
		case strings.HasPrefix(k, "ctrl+"):
			_, last = m.Update(tea.KeyPressMsg{Code: rune(k[5]), Mod: tea.ModCtrl})
		default:
			for _, r := range k {
				_, last = m.Update(tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		}
	}
	return last
}

func aRow(source, destination, method, path string, count, good uint64, ms int) *tappb.Row {
	d := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Millisecond) }
	return &tappb.Row{
		Source: source, Destination: destination, Method: method, Path: path, Direction: pb.TapEvent_OUTBOUND, Authority: "web",
		Count: count, Successes: good, Rate: float64(count) / 10, Open: count % 3,
		Best: d(ms), P50: d(2 * ms), P95: d(3 * ms), P99: d(4 * ms), Worst: d(5 * ms), Last: d(2 * ms),
	}
}

const voting = "/emojivoto.v1.VotingService/"

// someRows are those of the demo, more or less.
func someRows() rowsMsg {
	return rowsMsg{&tappb.TopResponse{Span: durationpb.New(12 * time.Second), Rows: []*tappb.Row{
		aRow("bot", "web-0", "GET", "/api/vote", 412, 351, 5),
		aRow("web-0", "emoji-2", "POST", "/emojivoto.v1.EmojiService/FindByShortcode", 300, 300, 2),
		aRow("web-0", "voting-1", "POST", voting+"VoteDoughnut", 61, 0, 3),
		aRow("web-0", "voting-0", "POST", voting+"VotePizza", 40, 39, 2),
		aRow("bot", "web-0", "GET", "/api/list", 22, 22, 1400),
		aRow("10.1.2.3", "web-0", "GET", "/wp-login.php\x1b[2J", 0, 0, 0),
	}}}
}

// exchange is the events of one request of the third row.
func exchange(stream uint64, ended bool) []seenAt {
	id := tap.StreamID{Base: 3, Stream: stream}
	e := tap.Event{
		Direction: tap.Outbound, ID: id,
		Source:            netip.MustParseAddrPort("127.0.0.1:35172"),
		Destination:       netip.MustParseAddrPort("127.0.0.1:38937"),
		SourceLabels:      map[string]string{"pod": "web-0", "tls": "loopback"},
		DestinationLabels: map[string]string{"pod": "voting-1", "namespace": "emojivoto"},
		RouteLabels:       map[string]string{"route": "doughnut"},
	}
	init, rsp, end := e, tap.Event{ID: id}, tap.Event{ID: id}
	init.RequestInit = &tap.RequestInit{
		Method: "POST", Scheme: "http", Authority: "voting.emojivoto:8080", Path: voting + "VoteDoughnut",
		Headers: []tap.Field{{Name: "content-type", Value: "application/grpc"}, {Name: "x-odd", Value: "a\x1b[31mb"}},
	}
	rsp.ResponseInit = &tap.ResponseInit{
		SinceRequestInit: 2980 * time.Microsecond, Status: 200,
		Headers: []tap.Field{{Name: "content-type", Value: "application/grpc"}},
	}
	end.ResponseEnd = &tap.ResponseEnd{
		SinceRequestInit: 2990 * time.Microsecond, SinceResponseInit: new(10 * time.Microsecond),
		GRPCStatus: new(codes.Unknown), Trailers: []tap.Field{{Name: "grpc-message", Value: "ERROR"}},
		Explanation: []layer.Node{
			{Name: "profiles", State: layer.State{{Key: "target", Value: "voting.emojivoto:8080"}, {Key: "route", Value: "doughnut"}}},
			{Name: "balance", State: layer.State{{Key: "pick", Value: "cheapest of 5"}, {Key: "chosen", Value: "127.0.0.1:38937"}},
				Children: []layer.Node{
					{Name: "endpoint", State: layer.State{{Key: "addr", Value: "127.0.0.1:38937"}, {Key: "result", Value: "chosen"}}},
					{Name: "endpoint", State: layer.State{
						{Key: "addr", Value: "127.0.0.1:45743"}, {Key: "result", Value: "passed over"}, {Key: "latency", Value: 5858 * time.Microsecond}}},
				}},
		},
	}
	all := []seenAt{{at: noon()}, {at: noon()}, {at: noon()}}
	for i, e := range []tap.Event{init, rsp, end} {
		all[i].ProcessEvent = tap.ProcessEvent{From: "127.0.0.1:4290", Event: e}
	}
	if !ended {
		return all[:1]
	}
	return all
}

// golden compares the screen, with its colors, with a file.
func golden(t *testing.T, m *model, name string) {
	t.Helper()
	lines := m.lines()
	require.Len(t, lines, m.height)
	got := strings.ReplaceAll(strings.Join(lines, "\n")+"\n", "\x1b", "␛")
	file := filepath.Join("testdata", fmt.Sprintf("%s-%dx%d.txt", name, m.width, m.height))
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "-update writes it anew")
}

var errRefused = errors.New("127.0.0.1:4290: connection refused. No server accepts connections. Is the program running, and is this its tap port?")
