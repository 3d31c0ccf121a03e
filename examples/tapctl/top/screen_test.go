package top

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// The screens at two sizes.
func TestViews(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {140, 40}} {
		m, a := newScreen(size[0], size[1])
		golden(t, m, "asking")
		m.Update(rowsMsg{&tappb.TopResponse{Span: durationpb.New(3 * time.Second)}})
		golden(t, m, "nothing")
		m.Update(someRows())
		golden(t, m, "rows")
		m.Update(newsMsg{err: errRefused})
		press(m, "down", "down", "/web", "enter", "p")
		golden(t, m, "filtered")
		press(m, "p", "esc", "?")
		golden(t, m, "help")
		press(m, "x", "G", "k", "k", "k")
		m.now = func() time.Time { return noon().Add(newsLast + time.Second) }
		press(m, "enter")
		require.Len(t, a.reqs, 1)
		golden(t, m, "waiting")
		m.Update(seenMsg{number: 1, seen: append(exchange(0, true), exchange(1, false)...), lost: 2})
		golden(t, m, "requests")
		press(m, "down", "enter")
		golden(t, m, "request")
	}
}

// The note is shown only on the screen of rows, and only if there is room for it.
func TestNote(t *testing.T) {
	m, _ := newScreen(80, 24)
	m.config.Note = "whose?\n  look"
	m.Update(someRows())
	lines := m.lines()
	require.Len(t, lines, 24)
	require.Equal(t, []string{"whose?", "  look", ""}, lines[2:5])
	press(m, "enter")
	require.Empty(t, m.note())
	press(m, "esc")
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 19})
	require.Empty(t, m.note())
	require.Len(t, m.lines(), 19)
}

// An error is shown while it lasts. Missing rows are then not reported as an empty table.
func TestScreenErrors(t *testing.T) {
	m, _ := newScreen(80, 24)
	m.Update(rowsMsg{&tappb.TopResponse{}})
	m.Update(newsMsg{err: errRefused})
	require.Contains(t, strings.Join(m.lines(), "\n"), "The error is below")
	require.Contains(t, strings.Join(m.lines(), "\n"), "connection refused")
	m.now = func() time.Time { return noon().Add(newsLast + time.Second) }
	require.NotContains(t, strings.Join(m.lines(), "\n"), "connection refused")
	require.Contains(t, strings.Join(m.lines(), "\n"), "No request yet")
}

// body is the lines between the header and the keys, without colours.
func body(m *model) []string {
	var out []string
	for _, l := range m.screen().body {
		out = append(out, ansi.Strip(l))
	}
	return out
}

// paths is the last part of the paths of the rows on the screen.
func paths(m *model) string {
	var out []string
	for _, r := range m.table.visible(m.width) {
		p, _, _ := strings.Cut(r.GetPath(), "\x1b")
		out = append(out, p[strings.LastIndexByte(p, '/')+1:])
	}
	return strings.Join(out, " ")
}

func TestSort(t *testing.T) {
	m, _ := newScreen(100, 30)
	m.Update(someRows())
	const byCount = "vote FindByShortcode VoteDoughnut VotePizza list wp-login.php"
	for _, tt := range []struct{ key, want string }{
		{"", byCount},
		{"5", "wp-login.php list VotePizza VoteDoughnut FindByShortcode vote"}, // count, which it is by already
		{"5", byCount},
		{"1", "wp-login.php vote list FindByShortcode VoteDoughnut VotePizza"},
		{"9", "VoteDoughnut vote VotePizza FindByShortcode list wp-login.php"},
		{"6", "list vote VoteDoughnut FindByShortcode VotePizza wp-login.php"},
		{"r", "wp-login.php FindByShortcode VotePizza VoteDoughnut vote list"},
	} {
		press(m, tt.key)
		require.Equal(t, tt.want, paths(m), "%q", tt.key)
	}
	require.Contains(t, body(m)[0], "Best▴")
}

// The selection stays with its row when the order changes. At the top it stays at the top.
func TestSelection(t *testing.T) {
	m, _ := newScreen(100, 30)
	m.Update(someRows())
	row := func() string { return m.table.selected(m.body()).GetPath() }
	require.Equal(t, "/api/vote", row())
	press(m, "down", "j")
	require.Equal(t, voting+"VoteDoughnut", row())
	press(m, "r")
	require.Equal(t, voting+"VoteDoughnut", row())
	press(m, "home", "r")
	require.Equal(t, "/api/vote", row())
	press(m, "end", "down", "pgdown")
	require.Equal(t, "/wp-login.php\x1b[2J", row())
	press(m, "/doughnut", "enter")
	require.Equal(t, voting+"VoteDoughnut", row())
	press(m, "up", "pgup")
	require.Equal(t, voting+"VoteDoughnut", row())
	press(m, "/x")
	require.Nil(t, m.table.selected(m.body()))
	require.Contains(t, strings.Join(body(m), "\n"), "No row has doughnutx in it. esc shows all again.")
	press(m, "enter", "enter", "esc")
	require.Nil(t, m.requests, "there is no row to enter")
	require.Len(t, m.table.visible(100), 6)
}

func TestFilter(t *testing.T) {
	m, _ := newScreen(100, 30)
	m.Update(someRows())
	press(m, "/VOTING-q")
	require.Equal(t, "/VOTING-q▏", m.lines()[29], "q is typed")
	press(m, "backspace", "1")
	require.Equal(t, "VoteDoughnut", paths(m))
	press(m, "ctrl+u")
	m.Update(tea.PasteMsg{Content: "pizza"})
	require.Equal(t, "VotePizza", paths(m))
	press(m, "enter")
	m.Update(tea.PasteMsg{Content: "not typed"})
	require.Equal(t, "VotePizza", paths(m))
	require.Contains(t, m.lines()[1], "1 of 6 rows with pizza  40 requests")
	press(m, "esc")
	require.Len(t, m.table.visible(100), 6)
	press(m, "/a", "esc", "/"+strings.Repeat("x", 500))
	require.Len(t, m.table.filter, 200)
	press(m, "ctrl+c")
}

func TestPause(t *testing.T) {
	m, _ := newScreen(100, 30)
	press(m, "p")
	m.Update(someRows())
	require.Empty(t, m.table.rows, "paused before anything came")
	press(m, "p")
	require.Len(t, m.table.rows, 6)
	press(m, " ")
	m.Update(rowsMsg{&tappb.TopResponse{Rows: someRows().answer.GetRows()[:1]}})
	require.Len(t, m.table.rows, 6)
	require.Contains(t, m.lines()[1], "PAUSED")
	press(m, "p")
	require.Len(t, m.table.rows, 1)
	require.Len(t, m.latest.GetRows(), 1)
}

func TestColumns(t *testing.T) {
	m, _ := newScreen(100, 30)
	m.Update(someRows())
	require.NotContains(t, body(m)[0], "P99")
	press(m, "w")
	require.Contains(t, body(m)[0], "P99")
	press(m, "h")
	require.NotContains(t, body(m)[0], "Source")
	require.Len(t, m.table.rows, 6)
	m.Update(tea.WindowSizeMsg{Width: 50, Height: 20})
	require.NotContains(t, body(m)[0], "Success")
	press(m, "d", "d", "d", "d", "d", "d", "d", "d", "d", "right", "right", "right")
	require.Contains(t, body(m)[0], "Success")
	require.NotContains(t, body(m)[0], "Destination")
	press(m, "a", "a", "a", "a", "a", "a", "a", "a", "a", "left", "left", "left")
	require.Contains(t, body(m)[0], "Destination")
	inbound := someRows()
	inbound.answer.Rows[0].Direction = 1
	m.Update(inbound)
	require.Contains(t, body(m)[0], " Dir ")
}

func TestRequestsOfRow(t *testing.T) {
	m, a := newScreen(100, 30)
	press(m, "enter")
	require.Empty(t, a.reqs, "no row, no requests")
	m.Update(someRows())
	press(m, "down", "down", "enter")
	req := a.reqs[0]
	require.True(t, req.GetFields() && req.GetExplain())
	require.Len(t, req.GetMatch().GetAll().GetMatches(), 2)
	require.EqualValues(t, 3, PerProcess(7, 2), "half of what both may show")
	require.EqualValues(t, math.MaxInt32, PerProcess(math.MaxInt, 2), "as many as can be asked for")

	m.Update(seenMsg{number: 2, seen: exchange(0, true)})
	require.Empty(t, m.requests.all, "that was for another list")
	other := exchange(1, true)
	other[0].Event.RequestInit = &tap.RequestInit{Method: "POST", Path: "/other"}
	m.Update(seenMsg{number: 1, seen: other})
	require.Empty(t, m.requests.all, "another row's")
	good := exchange(2, true)
	good[2].Event.ResponseEnd = &tap.ResponseEnd{SinceResponseInit: new(time.Duration(0))}
	m.Update(seenMsg{number: 1, seen: append(exchange(1, true), good...)})
	require.Len(t, m.requests.visible(), 2)
	press(m, "f")
	require.Len(t, m.requests.visible(), 1)
	press(m, "p")
	m.Update(seenMsg{number: 1, seen: exchange(3, true)})
	require.Len(t, m.requests.visible(), 1)
	press(m, "p", "f")
	require.Len(t, m.requests.visible(), 3)

	press(m, "down", "enter")
	require.NotNil(t, m.detail)
	m.Update(seenMsg{number: 1, seen: exchange(4, true)})
	require.EqualValues(t, 2, m.detail.record.first.ID.Stream, "it stays what it was")
	press(m, "esc", "down", "down", "enter")
	require.EqualValues(t, 1, m.detail.record.first.ID.Stream, "the selection has stayed with its request")
	press(m, "esc", "esc")
	require.Nil(t, m.requests)
	require.Equal(t, 1, a.stopped)
	m.Update(seenMsg{number: 1, seen: exchange(5, true)})
	press(m, "enter")
	require.Equal(t, 2, m.requests.number)
}

// The list of requests is bounded. Events of removed requests are ignored.
func TestRequestsBounded(t *testing.T) {
	m, _ := newScreen(100, 30)
	m.Update(someRows())
	press(m, "down", "down", "enter")
	for i := range uint64(2 * maxRequests) {
		m.Update(seenMsg{number: 1, seen: exchange(i, i%2 == 0)})
	}
	require.Len(t, m.requests.all, maxRequests)
	require.Contains(t, m.lines()[1], "1,000 requests, the last 500")
	m.Update(seenMsg{number: 1, seen: exchange(1, true)[1:]})
	m.Update(seenMsg{number: 1, seen: []seenAt{{ProcessEvent: tap.ProcessEvent{Event: tap.Event{Dropped: 17}}}}})
	require.Contains(t, m.lines()[1], "17 events dropped")
}

func TestQuit(t *testing.T) {
	for _, keys := range [][]string{{"q"}, {"ctrl+c"}, {"enter", "q"}, {"enter", "enter", "q"}, {"/", "ctrl+c"}, {"?", "ctrl+c"}} {
		m, _ := newScreen(100, 30)
		m.Update(someRows())
		cmd := press(m, keys...)
		require.NotNil(t, cmd, keys)
		require.Equal(t, tea.QuitMsg{}, cmd(), keys)
	}
}

// For any keys and any size, the drawn lines fit the screen and have no control characters
// except colors.
func TestScreenAnyInput(t *testing.T) {
	t.Parallel()
	keys := []string{
		"up", "down", "pgup", "pgdown", "home", "end", "enter", "esc", "backspace", "a", "d", "left", "right", "p", "w", "h", "r", "f", "/", "?",
		"1", "5", "9", "x", "o", "ctrl+u",
	}
	rapid.Check(t, func(t *rapid.T) {
		m, _ := newScreen(80, 24)
		stream := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"key":  func(t *rapid.T) { press(m, rapid.SampledFrom(keys).Draw(t, "key")) },
			"rows": func(*rapid.T) { m.Update(someRows()) },
			"none": func(*rapid.T) { m.Update(rowsMsg{&tappb.TopResponse{}}) },
			"news": func(*rapid.T) { m.Update(newsMsg{err: errRefused}) },
			"seen": func(t *rapid.T) {
				stream++
				m.Update(seenMsg{number: m.numbers, seen: exchange(stream, rapid.Bool().Draw(t, "ended"))})
			},
			"size": func(t *rapid.T) {
				m.Update(tea.WindowSizeMsg{Width: rapid.IntRange(0, 150).Draw(t, "width"), Height: rapid.IntRange(0, 50).Draw(t, "height")})
			},
			"": func(t *rapid.T) {
				lines := m.lines()
				require.LessOrEqual(t, len(lines), m.height)
				for _, l := range lines {
					require.LessOrEqual(t, ansi.StringWidth(l), m.width, "%q", l)
					require.NotContains(t, ansi.Strip(l), "\x1b")
					require.NotContains(t, l, "\x1b[2J")
				}
				require.True(t, m.View().AltScreen)
			},
		})
	})
}

// BenchmarkLines draws a screen with the maximum number of rows.
func BenchmarkLines(b *testing.B) {
	m, _ := newScreen(140, 40)
	msg := rowsMsg{&tappb.TopResponse{}}
	for i := range 1000 {
		msg.answer.Rows = append(msg.answer.Rows, aRow("bot", "web-0", "GET", fmt.Sprint("/a/path/of/some/length/", i), uint64(i), uint64(i), i))
	}
	m.Update(msg)
	for b.Loop() {
		m.lines()
	}
}
