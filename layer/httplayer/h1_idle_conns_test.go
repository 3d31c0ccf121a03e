package httplayer

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMaxIdleConns(t *testing.T) {
	const conns = 3
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, "hello") }))
	for name, tt := range map[string]struct {
		opts []EndpointOption
		want int
	}{
		"default":  {nil, conns},
		"no bound": {[]EndpointOption{WithMaxIdleConns(-1)}, conns},
		"one":      {[]EndpointOption{WithMaxIdleConns(1)}, 1},
		"none":     {[]EndpointOption{WithMaxIdleConns(0)}, 0},
		"enough":   {[]EndpointOption{WithMaxIdleConns(conns)}, conns},
	} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr, append(tt.opts, WithHTTP1())...)
			for range 2 { // the second time some are there
				var open []*http.Response
				for range conns {
					rsp, err := e.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
					require.NoError(t, err)
					open = append(open, rsp)
				}
				for _, rsp := range open {
					assert.Equal(t, "hello", read(t, rsp))
				}
				state := e.Describe().State
				assert.Equal(t, tt.want, state.Get("connections"))
				assert.Zero(t, state.Get("in_flight"))
			}
		})
	}
}
