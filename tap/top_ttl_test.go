package tap

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A row stays for its TTL after its last request. A row with a running request
// stays.
func TestRowsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		c := countAll(t, reg, nil)
		svc := stand(reg, respond("x"))
		send(t, svc, get("/once"))
		send(t, svc, get("/again"))
		long, err := svc.Call(t.Context(), get("/long"))
		require.NoError(t, err)
		time.Sleep(5 * time.Minute)
		send(t, svc, get("/again"))
		time.Sleep(5*time.Minute - time.Second)
		require.Len(t, c.rows.answer(0).GetRows(), 3)
		time.Sleep(time.Second)
		rows := byPath(c.rows.answer(0))
		require.Len(t, rows, 2)
		require.EqualValues(t, 2, rows["/again"].GetCount())
		require.EqualValues(t, 1, rows["/long"].GetOpen())

		send(t, svc, get("/once"))
		require.EqualValues(t, 1, byPath(c.rows.answer(0))["/once"].GetCount(), "a new row")
		time.Sleep(time.Hour)
		require.Len(t, c.rows.answer(0).GetRows(), 1)
		require.NoError(t, long.Body.Close())
		require.EqualValues(t, 1, byPath(c.rows.answer(0))["/long"].GetCount())
		time.Sleep(time.Hour)
		require.Empty(t, c.rows.answer(0).GetRows())
	})
}

// A full table removes rows without a request for a minute. Until then, further
// requests count in the row other.
func TestRowsFullTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(nil)
		fill(rows, maxRows)
		request := func() {
			rows.begin(&namelessEvent, &RequestInit{Path: "/new"}, time.Now()).end(&ResponseEnd{}, 200, time.Now())
		}
		time.Sleep(time.Minute - time.Second)
		rows.begin(&namelessEvent, &RequestInit{Path: "/new"}, time.Now()).end(&ResponseEnd{}, 200, time.Now())
		got := byPath(rows.answer(2 * maxRows))
		require.Len(t, got, maxRows+1)
		require.EqualValues(t, 1, got[otherRow].GetCount())
		time.Sleep(time.Second)
		rows.answer(maxRows + 1)
		request()
		got = byPath(rows.answer(0))
		require.Len(t, got, 2)
		require.EqualValues(t, 1, got["/new"].GetCount())
		require.EqualValues(t, 1, got[otherRow].GetCount())
	})
}

// Each request counts once while rows are added and removed.
func TestRowsUnderLoad(t *testing.T) {
	const clients, requests = 4, 3000
	rows := newTable(nil)
	rows.ttl = 1
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for i := range requests {
				r := rows.begin(&namelessEvent, &RequestInit{Path: fmt.Sprint(i % 10)}, time.Now())
				defer r.end(&ResponseEnd{SinceRequestInit: time.Millisecond}, 200, time.Now())
			}
		})
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
			for _, r := range rows.answer(0).GetRows() {
				require.LessOrEqual(t, r.GetCount()+r.GetOpen(), uint64(clients*requests))
			}
		}
	}
	time.Sleep(time.Millisecond) // the TTL
	require.Empty(t, rows.answer(0).GetRows())
}
