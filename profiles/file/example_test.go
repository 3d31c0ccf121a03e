package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gotower/gotower/profiles/file"
)

const web = `
target: web.default.svc.cluster.local
routes:
- name: vote
  match: {method: GET, path: /api/vote}
  timeout: 1s
  retry: true
  failures: [500-599]
split:
  web-v1.default.svc.cluster.local: 90
  web-v2.default.svc.cluster.local: 10
---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  name: books.default.svc.cluster.local
spec:
  routes:
  - name: GET /books/{id}
    condition: {method: GET, pathRegex: '/books/[^/]*'}
`

func ExampleNew() {
	dir, err := os.MkdirTemp("", "profiles")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "web.yaml")
	if err := os.WriteFile(path, []byte(web), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	source := file.New(path) // what profiles.New takes
	for _, target := range []string{"web.default.svc.cluster.local:80", "books.default.svc.cluster.local:80"} {
		for p, err := range source.Watch(context.Background(), target) {
			if err != nil {
				fmt.Println(err) // the last profile stays current
				continue
			}
			for _, r := range p.Routes {
				fmt.Println(p.Name, r.Name, r.Match, r.Timeout)
			}
			fmt.Println(p.Targets)
			break // it would wait for a change of the file
		}
	}
	// Output:
	// web.default.svc.cluster.local vote [GET ^/api/vote$] 1s
	// [{web-v1.default.svc.cluster.local:80 90} {web-v2.default.svc.cluster.local:80 10}]
	// books.default.svc.cluster.local GET /books/{id} [GET /books/[^/]*] 0s
	// []
}

func ExampleParse() {
	_, err := file.Parse("web.yaml", []byte(`
target: web.default.svc.cluster.local
routes:
- name: vote
  match: {method: GET, path: api/vote}
  timeout: 1
  retries: 3
`))
	fmt.Println(err)
	// Output:
	// web.yaml:5:30: routes[0].match.path "api/vote": want a path that begins with '/', without a query; pathRegex takes regular expressions
	// web.yaml:6:12: routes[0].timeout "1": want a duration such as 300ms, 10s or 1m30s
	// web.yaml:7:3: routes[0].retries: unknown field: there are classes, failures, faults, hedge, labels, limit, match, maxRetries, mirrors, name, rate, redirect, requestHeader, respond, responseHeader, retry, rewrite, successes, timeout, timeoutAfterBody, tryTimeout
}

// Parts that linkerd leaves out are left out here too, with a warning.
func ExampleSet() {
	set, err := file.Parse("web.yaml", []byte(`
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: web.default.svc.cluster.local}
spec:
  routes:
  - name: all
    condition: {method: get}
    responseClasses:
    - condition: {any: [{status: {min: 500}}, {status: {min: 429, max: 429}}]}
      isFailure: true
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, w := range set.Warnings {
		fmt.Println(w)
	}
	for _, target := range set.Targets() {
		fmt.Println(target, set.Profile(target + ":80").Routes[0].Classes)
	}
	// Output:
	// web.yaml:10:34: spec.routes[0].responseClasses[0].condition.any[0].status: want both min and max: left out
	// web.default.svc.cluster.local [{[{429 429}] true}]
}
