package tap

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

// sumOf is what all rows have counted, and what is open in them.
func sumOf(m *tappb.TopResponse) (count, successes, open uint64) {
	for _, r := range m.GetRows() {
		count, successes, open = count+r.GetCount(), successes+r.GetSuccesses(), open+r.GetOpen()
	}
	return count, successes, open
}

// A row stays for ten minutes after its last request, however long that takes,
// and then is counted with others.
func TestRowsGoWhenUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		c := countAll(t, reg, nil)
		svc := stand(reg, serve(func(_ context.Context, c *call) (*reply, error) {
			return &reply{status: 200 + 300*(len(c.path)%2), Body: io.NopCloser(strings.NewReader("x"))}, nil
		}))
		begun := time.Now()
		at := func(after time.Duration) map[string]*tappb.Row { // a look a second
			for {
				m := c.rows.answer(time.Now(), 0)
				if time.Since(begun) >= after {
					return byPath(m)
				}
				time.Sleep(time.Second)
			}
		}
		send(t, svc, get("/once"))
		send(t, svc, get("/fails"))
		send(t, svc, get("/fails"))
		send(t, svc, get("/again"))
		long, err := svc.Call(t.Context(), get("/long"))
		require.NoError(t, err)
		at(5 * time.Minute)
		send(t, svc, get("/again"))

		rows := at(defaultKeepTime - time.Second)
		require.Len(t, rows, 4)
		rows = at(defaultKeepTime + time.Second)
		require.Len(t, rows, 3)
		require.EqualValues(t, 2, rows["/again"].GetCount())
		require.EqualValues(t, 1, rows["/long"].GetOpen(), "a request that runs")
		require.EqualValues(t, 3, rows[otherRow].GetCount())
		require.EqualValues(t, 2, rows[otherRow].GetSuccesses())
		require.Zero(t, rows[otherRow].GetOpen())

		send(t, svc, get("/once"))
		require.EqualValues(t, 1, at(0)["/once"].GetCount(), "it begins anew")
		rows = at(time.Hour)
		require.Len(t, rows, 2)
		require.EqualValues(t, 6, rows[otherRow].GetCount())

		require.NoError(t, long.Body.Close())
		rows = at(time.Hour + time.Second)
		require.EqualValues(t, 1, rows["/long"].GetCount())
		rows = at(2 * time.Hour)
		require.Len(t, rows, 1)
		require.EqualValues(t, 7, rows[otherRow].GetCount())
		require.EqualValues(t, maxRows, c.rows.free.Load())
	})
}

const defaultKeepTime = time.Duration(defaultKeep)

func TestKeepRows(t *testing.T) {
	keeps := map[RowTTL]stay{
		-1:                     {10 * time.Minute, time.Minute},
		0:                      {10 * time.Minute, time.Minute},
		1:                      {1, 1},
		RowTTL(time.Hour):      {time.Hour, time.Minute},
		RowTTL(20_000_000_000): {20 * time.Second, 20 * time.Second},
	}
	for keep, want := range keeps {
		require.Equal(t, want, NewRows(nil, keep).rows.stay)
		require.Equal(t, want, countAll(t, NewRegistry(keep), nil).rows.stay)
		require.Equal(t, want, newFollowOptions([]FollowOption{keep}).keepRows.stay())
	}
	require.Equal(t, keeps[0], countAll(t, new(Registry), nil).rows.stay)
}

// Where there is no room for others, rows make it that had no request for a
// minute: as many as may be wanted, those that had none for longest first.
func TestRowsMakeRoom(t *testing.T) {
	rows := newTable(false)
	rows.free.Store(5)
	now := rows.start
	request := func(paths ...string) {
		for _, path := range paths {
			rows.row(&namelessEvent, &RequestInit{Path: path}).end(&ResponseEnd{}, 200)
		}
	}
	pass := func(d time.Duration) []string {
		now = now.Add(d)
		m := rows.answer(now, 0)
		var paths []string
		for path := range byPath(m) {
			paths = append(paths, path)
		}
		slices.Sort(paths)
		return paths
	}
	request("/b")
	open := rows.row(&namelessEvent, &RequestInit{Path: "/open"})
	pass(time.Second)
	request("/a", "/c", "/c", "/d")
	require.Equal(t, []string{"/a", "/b", "/c", "/d", "/open"}, pass(time.Second))
	require.Len(t, pass(2*time.Minute), 5, "nobody wants room")
	request("/d", "/new", "/new")
	require.Equal(t, []string{"(other)", "/c", "/d", "/open"}, pass(time.Second), "two may have wanted it")
	request("/new", "/new")
	require.Equal(t, []string{"(other)", "/c", "/d", "/new", "/open"}, pass(time.Second))
	request("/newer", "/newest", "/last", "/last", "/last")
	require.Equal(t, []string{"(other)", "/d", "/new", "/newer", "/open"}, pass(time.Second))
	request("/last", "/last")
	pass(time.Second)
	require.EqualValues(t, 2, countOf(rows, "/d"), "no other had none for a minute")
	count, _, running := sumOf(rows.answer(now, 0))
	require.EqualValues(t, 17, count)
	require.EqualValues(t, 1, running)
	open.forget()
	require.Equal(t, []string{"(other)"}, pass(time.Hour))
	require.EqualValues(t, 5, rows.free.Load())
	require.EqualValues(t, maxTableText, rows.room.Load())
}

// A storm of paths does not clear a table at once.
func TestRowsMakeRoomByAndBy(t *testing.T) {
	rows := newTable(false)
	fill(rows, maxRows)
	now := rows.start.Add(time.Second)
	rows.sample(now)
	before, _, _ := sumOf(rows.answer(now, maxRows+1))
	now = now.Add(2 * time.Minute)
	for i := range 10 * maxRows {
		rows.row(&namelessEvent, &RequestInit{Path: fmt.Sprint("/storm", i)}).end(&ResponseEnd{}, 200)
	}
	rows.sample(now)
	require.EqualValues(t, mostMade, rows.free.Load())
	count, _, open := sumOf(rows.answer(now, maxRows+1))
	require.Equal(t, before+10*maxRows, count)
	require.Zero(t, open)
}

// Text that is let go makes room for other text.
func TestRowsMakeRoomForText(t *testing.T) {
	rows := newTable(false)
	long := strings.Repeat("a", maxRowText)
	for i := range maxTableText / maxRowText {
		rows.row(&namelessEvent, &RequestInit{Path: fmt.Sprintf("%03d%s", i, long)}).end(&ResponseEnd{}, 200)
	}
	require.Zero(t, rows.room.Load())
	rows.row(&namelessEvent, &RequestInit{Path: "/more"}).end(&ResponseEnd{}, 200)
	require.EqualValues(t, 1, rows.other.began.Load())
	rows.sample(rows.start.Add(time.Second))
	rows.row(&namelessEvent, &RequestInit{Path: "/more"}).end(&ResponseEnd{}, 200)
	rows.sample(rows.start.Add(2 * time.Minute))
	rows.row(&namelessEvent, &RequestInit{Path: "/more"}).end(&ResponseEnd{}, 200)
	require.EqualValues(t, 1, countOf(rows, "/more"))
}

// countOf is what the row of this path has counted.
func countOf(t *table, path string) uint64 {
	return byPath(t.answer(t.sampled, maxRows+1))[path].GetCount()
}

// A request that found a row just before that was let go begins in another.
func TestARowIsLetGoWhileARequestComes(t *testing.T) {
	rows := newTable(false)
	rows.row(&namelessEvent, &RequestInit{Path: "/a"}).end(&ResponseEnd{}, 200)
	rows.sample(rows.start.Add(time.Second))
	found := slices.Collect(rows.slots.Load().all)[0]
	rows.sample(rows.start.Add(time.Hour))
	require.False(t, found.enter())
	again := rows.add(found.hash, &found.key, "", "")
	require.NotSame(t, found, again)
	rows.sample(rows.start.Add(2 * time.Hour))
	require.EqualValues(t, 1, again.open(), "what begins is not let go")
	again.end(&ResponseEnd{}, 500)
	count, successes, open := sumOf(rows.answer(rows.start.Add(3*time.Hour), 0))
	require.Equal(t, []uint64{2, 1, 0}, []uint64{count, successes, open})
}

// A row that somebody enters between the look at it and its end stays.
func TestARowInUseIsNotDropped(t *testing.T) {
	rows := newTable(false)
	r := rows.row(&namelessEvent, &RequestInit{Path: "/a"})
	r.end(&ResponseEnd{}, 200)
	rows.sample(rows.start.Add(time.Second))
	require.True(t, r.enter())
	rows.drop([]*row{r})
	require.Same(t, r, rows.slots.Load().find(r.hash, &r.key))
	require.EqualValues(t, 1, r.open())
	require.Zero(t, rows.other.began.Load())
	require.EqualValues(t, maxRows-1, rows.free.Load())
}

// Whatever goes while requests come: each is counted once.
func TestRowsGoUnderLoad(t *testing.T) {
	const clients, requests = 4, 3000
	rows := newTable(false)
	rows.free.Store(7)
	var running sync.WaitGroup
	var left atomic.Int64
	left.Store(clients)
	for range clients {
		running.Go(func() {
			defer left.Add(-1)
			var open []*row
			for i := range requests {
				open = append(open, rows.row(&namelessEvent, &RequestInit{Path: fmt.Sprint(rand.IntN(10))}))
				if len(open) > rand.IntN(4) {
					open[0].end(&ResponseEnd{SinceRequestInit: time.Millisecond}, 200+300*(i%2))
					open = open[1:]
				}
			}
			for _, r := range open {
				r.end(&ResponseEnd{SinceRequestInit: time.Millisecond}, 200)
			}
		})
	}
	defer running.Wait()
	now, last, went := rows.start, uint64(0), 0
	for left.Load() > 0 {
		now = now.Add(time.Hour) // whatever is not in use goes
		before := rows.slots.Load()
		m := rows.answer(now, 0)
		if rows.slots.Load() != before {
			went++
		}
		count, successes, open := sumOf(m)
		assert.GreaterOrEqual(t, count, last, "a sum never falls")
		assert.LessOrEqual(t, successes, count)
		assert.LessOrEqual(t, count+open, uint64(clients*requests))
		assert.LessOrEqual(t, len(m.GetRows()), 8)
		assert.Len(t, byPath(m), len(m.GetRows()), "no row is there twice")
		last = count
	}
	running.Wait()
	count, _, open := sumOf(rows.answer(now.Add(time.Hour), 0))
	require.EqualValues(t, clients*requests, count)
	require.Zero(t, open)
	rows.sample(now.Add(3 * time.Hour))
	require.EqualValues(t, 7, rows.free.Load())
	require.EqualValues(t, maxTableText, rows.room.Load())
	require.EqualValues(t, clients*requests, total(rows.other))
	var c counts
	rows.other.times.read(&c)
	require.EqualValues(t, clients*requests, c.total)
	t.Logf("rows went %d times", went)
}

// Buckets of several large rows do not overflow that of the one they go to.
func TestLargeRowsGo(t *testing.T) {
	rows := newTable(false)
	for i := range 10 {
		r := rows.row(&namelessEvent, &RequestInit{Path: fmt.Sprint(i)})
		r.within(0, 0)
		r.times[0].Store(foldAt - 1)
		r.began.Store(foldAt - 1)
		r.ends.Store(foldAt - 1)
	}
	rows.sample(rows.start.Add(time.Second))
	rows.sample(rows.start.Add(time.Hour))
	require.EqualValues(t, 10*(foldAt-1), total(rows.other))
	require.Less(t, rows.other.times[0].Load(), uint32(foldAt))
	require.Greater(t, rows.other.times[0].Load(), uint32(foldAt/4))
}

// Who reads the rows of several processes sees them go as well, and counted
// elsewhere, whether they are counted there or here.
func TestFollowTopRowsThatGo(t *testing.T) {
	t.Parallel()
	a, b := start(t, "", ours(NewRegistry(RowTTL(1)))), start(t, "", linkerds(new(Registry)))
	const n = 20
	svc := stand(a.reg, respond("x"))
	processes := []Process{a.process(t, "a"), b.process(t, "b")}
	stop := traffic(t, b.reg, "/b")
	var others uint64
	phase := 0
	for m, err := range FollowTop(bounded(t), processes, often(), quickly(), RowTTL(1)) {
		require.NoError(t, err)
		rows := byPath(m)
		switch {
		case phase == 0 && rows["/b"].GetCount() > 0:
			stop()
			phase++
		case phase == 1 && a.reg.active.Load() != nil && rows["/b"] == nil:
			others = rows[otherRow].GetCount()
			require.Positive(t, others)
			long, err := svc.Call(t.Context(), get("/long"))
			require.NoError(t, err)
			defer long.Body.Close()
			for range n {
				send(t, svc, get("/a"))
			}
			phase++
		case phase == 2 && rows["/a"] == nil && rows[otherRow].GetCount() >= others+n && rows["/long"].GetOpen() == 1:
			return
		}
	}
	t.Fatalf("it ended in phase %d", phase)
}

// The rate of what goes is not lost.
func TestRateOfRowsThatGo(t *testing.T) {
	rows := NewRows(&tappb.TopRequest{Every: durationpb.New(time.Second)}, RowTTL(1)).rows
	now := rows.start
	for range 10 {
		rows.row(&namelessEvent, &RequestInit{Path: "/a"}).end(&ResponseEnd{}, 200)
	}
	now = now.Add(time.Second)
	require.InDelta(t, 10, byPath(rows.answer(now, 0))["/a"].GetRate(), 0.1)
	now = now.Add(time.Second)
	m := byPath(rows.answer(now, 0))
	require.Nil(t, m["/a"])
	require.InDelta(t, 4.8, m[otherRow].GetRate(), 0.2)
}
