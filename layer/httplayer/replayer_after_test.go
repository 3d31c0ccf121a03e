package httplayer

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

func TestReplayerRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
		head := func(fields ...string) http.Header {
			h := http.Header{}
			for i := 0; i < len(fields); i += 2 {
				h.Add(fields[i], fields[i+1])
			}
			return h
		}
		const after, push = "Retry-After", "Grpc-Retry-Pushback-Ms"
		for name, tt := range map[string]struct {
			rsp  *http.Response
			err  error
			want time.Duration
			said bool
		}{
			"seconds":               {&http.Response{StatusCode: 503, Header: head(after, "7")}, nil, 7 * time.Second, true},
			"too many requests":     {&http.Response{StatusCode: 429, Header: head(after, "7")}, nil, 7 * time.Second, true},
			"now":                   {&http.Response{StatusCode: 503, Header: head(after, "0")}, nil, 0, true},
			"a date":                {&http.Response{StatusCode: 503, Header: head(after, in(time.Minute))}, nil, time.Minute, true},
			"a date that has been":  {&http.Response{StatusCode: 503, Header: head(after, in(-time.Minute))}, nil, 0, true},
			"longer than there is":  {&http.Response{StatusCode: 503, Header: head(after, "99999999999999999999")}, nil, math.MaxInt64, true},
			"negative":              {&http.Response{StatusCode: 503, Header: head(after, "-1")}, nil, 0, false},
			"signed":                {&http.Response{StatusCode: 503, Header: head(after, "+1")}, nil, 0, false},
			"a fraction":            {&http.Response{StatusCode: 503, Header: head(after, "1.5")}, nil, 0, false},
			"nothing":               {&http.Response{StatusCode: 503}, nil, 0, false},
			"of a redirection":      {&http.Response{StatusCode: 302, Header: head(after, "7")}, nil, 0, false},
			"of a success":          {&http.Response{StatusCode: 200, Header: head(after, "7")}, nil, 0, false},
			"of another failure":    {&http.Response{StatusCode: 500, Header: head(after, "7")}, nil, 0, false},
			"pushback":              {&http.Response{StatusCode: 200, Header: head(push, "150")}, nil, 150 * time.Millisecond, true},
			"in trailers":           {&http.Response{StatusCode: 200, Trailer: head(push, "150")}, nil, 150 * time.Millisecond, true},
			"trailers not here yet": {&http.Response{StatusCode: 200, Trailer: http.Header{push: nil}}, nil, 0, false},
			"do not":                {&http.Response{StatusCode: 200, Header: head(push, "-1")}, nil, -1, true},
			"do not, in words":      {&http.Response{StatusCode: 200, Header: head(push, "never")}, nil, -1, true},
			"too long for 32 bits":  {&http.Response{StatusCode: 200, Header: head(push, "2147483648")}, nil, -1, true},
			"repeated":              {&http.Response{StatusCode: 200, Header: head(push, "1", push, "2")}, nil, -1, true},
			"both":                  {&http.Response{StatusCode: 503, Header: head(after, "7", push, "150")}, nil, 7 * time.Second, true},
			"both, and do not":      {&http.Response{StatusCode: 503, Header: head(after, "7", push, "-1")}, nil, -1, true},
			"both, pushed further":  {&http.Response{StatusCode: 503, Header: head(after, "1", push, "1500")}, nil, 1500 * time.Millisecond, true},
			"a refusal":             {nil, &layer.Error{Layer: "rate", Kind: layer.ErrNotReady, RetryAfter: time.Second}, time.Second, true},
			"an error":              {nil, errors.New("odd"), 0, false},
			"nothing at all":        {nil, nil, 0, false},
		} {
			got, said := Replayer{}.RetryAfter(tt.rsp, tt.err)
			assert.Equal(t, tt.said, said, name)
			assert.Equal(t, tt.want, got, name)
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	now := time.Unix(1_700_000_000, 0)
	for _, s := range []string{"", "0", "120", "-1", "+1", "1e3", "99999999999", "Wed, 21 Oct 2015 07:28:00 GMT", "Tuesday, 14-Nov-23 22:13:25 GMT"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, ok := retryAfter(s, now)
		if d < 0 || !ok && d != 0 {
			t.Fatalf("%q is %v", s, d)
		}
		n, err := strconv.ParseUint(s, 10, 32)
		if err == nil && (!ok || d != time.Duration(n)*time.Second) {
			t.Fatalf("%q is %v", s, d)
		}
		date, err := http.ParseTime(s)
		if err == nil && (!ok || d != max(0, date.Sub(now))) {
			t.Fatalf("%q is %v", s, d)
		}
	})
}

func FuzzPushback(f *testing.F) {
	for _, s := range []string{"", "0", "150", "-1", "2147483647", "2147483648", "x", " 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, ok := pushback([]string{s})
		n, err := strconv.ParseInt(s, 10, 32)
		switch {
		case !ok:
			t.Fatalf("%q says nothing", s)
		case err != nil || n < 0:
			if d >= 0 {
				t.Fatalf("%q allows a retry after %v", s, d)
			}
		case d != time.Duration(n)*time.Millisecond:
			t.Fatalf("%q is %v", s, d)
		}
	})
}

func TestSetRetryAfter(t *testing.T) {
	for after, want := range map[time.Duration][2]string{
		time.Nanosecond:         {"1", "1"},
		time.Second:             {"1", "1000"},
		1500 * time.Millisecond: {"2", "1500"},
		math.MaxInt64:           {"9223372037", "2147483647"},
	} {
		h := http.Header{}
		setRetryAfter(h, after, false)
		setRetryAfter(h, after, true)
		assert.Equal(t, want, [2]string{h.Get("Retry-After"), h.Get("Grpc-Retry-Pushback-Ms")})
	}
}
