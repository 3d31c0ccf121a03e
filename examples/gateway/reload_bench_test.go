package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/gateway/config"
)

// BenchmarkReload is a reload of a file with 10 000 routes, until the router finds the last of them.
// What changes is one route, a field of each route, or a default of all routes.
func BenchmarkReload(b *testing.B) {
	for name, text := range map[string]func(generation int) string{
		"route": func(generation int) string { return routesFile("", 1, generation) },
		"every": func(generation int) string { return routesFile("", manyRoutes, generation) },
		"default": func(generation int) string {
			return routesFile(fmt.Sprintf("defaults: {routes: {"+routeFields+"}}\n", generation), 0, 0)
		},
	} {
		b.Run(name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "gateway.yaml")
			load := func(generation int) *config.Config {
				require.NoError(b, os.WriteFile(path, []byte(text(generation)), 0o600))
				c, err := config.Load(path)
				require.NoError(b, err)
				return c
			}
			g, err := newGateway(b.Context(), load(0), nil, slog.New(slog.DiscardHandler))
			require.NoError(b, err)
			req := httptest.NewRequest(http.MethodGet, fmt.Sprintf("/route-%05d/x", manyRoutes-1), http.NoBody)
			b.ReportAllocs()
			generation := 0
			for b.Loop() {
				generation++
				require.NoError(b, g.load(b.Context(), load(generation)))
				for !g.isLoaded() {
					time.Sleep(time.Millisecond)
				}
				route, err := g.router.Route(b.Context(), req)
				require.NoError(b, err)
				require.NotNil(b, route)
			}
		})
	}
}

const manyRoutes = 10_000

// routeFields are fields of a route, with the generation of the configuration.
const routeFields = `retry: {attempts: 1, codes: [502, 503, 504]}, responseHeaderModifier: {set: [{name: X-Generation, value: "%d"}]}`

// routesFile returns a configuration with many routes. As many of the last ones as changed have
// routeFields with the given generation; the others with 0, unless there are defaults for them.
func routesFile(defaults string, changed, generation int) string {
	var text strings.Builder
	text.WriteString(head + defaults + `services: [{name: backend, static: {addresses: ["127.0.0.1:1"]}}]
routes:
`)
	for i := range manyRoutes {
		fmt.Fprintf(&text, `- name: route-%[1]d
  matches: [{path: {prefix: /route-%05[1]d}}]
  backendRefs: [{name: backend}]
`, i)
		if defaults == "" {
			value := 0
			if i >= manyRoutes-changed {
				value = generation
			}
			fmt.Fprintf(&text, "  "+strings.ReplaceAll(routeFields, "}, ", "}\n  ")+"\n", value)
		}
	}
	return text.String()
}
