package profiles

import (
	"fmt"
	"testing"
)

// BenchmarkMatchPolicy finds one of n routes with a condition each on the host, path and method.
// "hosts" are n hosts with one path, "suffixes" n domains, "paths" n paths of one host.
func BenchmarkMatchPolicy(b *testing.B) {
	for _, kind := range []struct {
		name  string
		match func(i int) (Match, facts)
	}{
		{"hosts", func(i int) (Match, facts) {
			host := fmt.Sprintf("web-%d.default.example", i)
			return All{Host{Exact(host)}, PathPrefix("/api"), Method("GET")}, facts{authority: host + ":80", path: "/api/books"}
		}},
		{"suffixes", func(i int) (Match, facts) {
			domain := fmt.Sprintf(".web-%d.example", i)
			return All{Host{Suffix(domain)}, PathPrefix("/api"), Method("GET")}, facts{authority: "a" + domain, path: "/api/books"}
		}},
		{"paths", func(i int) (Match, facts) {
			path := fmt.Sprintf("/api/things%d", i)
			return All{Host{Exact("web.example")}, PathPrefix(path), Method("GET")}, facts{authority: "web.example", path: path + "/1"}
		}},
	} {
		for _, n := range []int{10, 1000, 10_000} {
			p := &Profile{Precedence: MostSpecific}
			var req *probe
			for i := range n {
				m, f := kind.match(i)
				f.method, f.header = "GET", httpFields(nil)
				p.Routes = append(p.Routes, Route{Match: m})
				if i == n/2 {
					req = &probe{facts: f}
				}
			}
			p.Routes = append(p.Routes, Route{Name: "default", Match: All{}})
			s := snapshotOf(p)
			b.Run(fmt.Sprintf("%s/%d", kind.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if route := s.match(probeAccess{}, req); route == nil || route.def.Name != "" {
						b.Fatal("no route")
					}
				}
			})
		}
	}
}
