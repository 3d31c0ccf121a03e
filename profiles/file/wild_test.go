package file

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

// openAPI writes what "linkerd profile --open-api" makes of a description with
// this many resources, of seven routes each: a path parameter becomes [^/]*,
// each documented status a class.
func openAPI(resources int) string {
	parameter := regexp.MustCompile(`\\{[^\}]*\\}`)
	var b strings.Builder
	b.WriteString("apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata:\n  creationTimestamp: null\n" +
		"  name: petstore.pets.svc.cluster.local\n  namespace: pets\nspec:\n  routes:\n")
	route := func(method, path string, statuses ...int) {
		regex := parameter.ReplaceAllLiteralString(regexp.QuoteMeta(path), "[^/]*")
		fmt.Fprintf(&b, "  - condition:\n      method: %s\n      pathRegex: %s\n    name: %s %s\n    responseClasses:\n", method, regex, method, path)
		for _, status := range statuses {
			fmt.Fprintf(&b, "    - condition:\n        status:\n          max: %d\n          min: %d\n", status, status)
			if status >= 500 {
				b.WriteString("      isFailure: true\n")
			}
		}
	}
	for i := range resources {
		base := fmt.Sprintf("/v2/res-%d.json", i)
		route("GET", base, 200)
		route("POST", base, 201, 405)
		for _, method := range []string{"DELETE", "GET", "HEAD", "PUT"} {
			route(method, base+"/{id}", 200, 404, 500)
		}
		route("GET", base+"/{id}/photos/{photoId}", 200, 503)
	}
	return b.String()
}

func TestGeneratedServiceProfile(t *testing.T) {
	const resources = 60
	s := parse(t, openAPI(resources))
	require.Empty(t, s.Warnings)
	p := s.Profile("petstore.pets.svc.cluster.local:80")
	require.Len(t, p.Routes, 7*resources)

	last := p.Routes[len(p.Routes)-1]
	assert.Equal(t, "GET /v2/res-59.json/{id}/photos/{photoId}", last.Name)
	assert.Equal(t, profiles.All{profiles.Method("GET"), profiles.Path(`/v2/res-59\.json/[^/]*/photos/[^/]*`)}, last.Match)
	assert.Equal(t, []profiles.ResponseClass{
		{Match: profiles.Status{Min: 200, Max: 200}},
		{Match: profiles.Status{Min: 503, Max: 503}, Failure: true},
	}, last.Classes)
	for request, want := range map[string]string{
		"GET /v2/res-7.json":              "GET /v2/res-7.json",
		"GET /v2/res-7xjson":              "",
		"PUT /v2/res-59.json/4711":        "PUT /v2/res-59.json/{id}",
		"PATCH /v2/res-59.json/4711":      "",
		"GET /v2/res-0.json/a/photos/b":   "GET /v2/res-0.json/{id}/photos/{photoId}",
		"GET /v2/res-0.json/a/photos/b/c": "",
	} {
		assert.Equal(t, want, routed(t, p, request), request)
	}
}

// As in linkerd's documents on emojivoto (made from the .proto files) and on
// booksapp (made by hand, and from an OpenAPI file).
const documented = `
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  creationTimestamp: null
  name: voting-svc.emojivoto.svc.cluster.local
  namespace: emojivoto
spec:
  routes:
  - condition:
      method: POST
      pathRegex: /emojivoto\.v1\.VotingService/VotePoop
    name: VotePoop
  - condition:
      method: POST
      pathRegex: /emojivoto\.v1\.VotingService/VoteJoy
    isRetryable: true
    name: VoteJoy
---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  name: web-svc.emojivoto.svc.cluster.local
  namespace: emojivoto
spec:
  routes:
  - name: GET /api/list
    condition:
      method: GET
      pathRegex: /api/list
  - name: GET /api/vote
    condition:
      method: GET
      pathRegex: /api/vote
---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  name: authors.booksapp.svc.cluster.local
  namespace: booksapp
spec:
  routes:
  - condition:
      method: GET
      pathRegex: /authors/[^/]*\.json
    name: GET /authors/{id}.json
  - condition:
      method: HEAD
      pathRegex: /authors/[^/]*\.json
    isRetryable: true
    name: HEAD /authors/{id}.json
    timeout: 25ms
  retryBudget:
    retryRatio: 0.2
    minRetriesPerSecond: 10
    ttl: 10s
---
# A canary, as flagger keeps it.
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  name: podinfo.test.svc.cluster.local
  namespace: test
spec:
  dstOverrides:
  - authority: podinfo-primary.test.svc.cluster.local.:9898
    weight: "95"
  - authority: podinfo-canary.test.svc.cluster.local.:9898
    weight: "5"
---
`

func TestDocumentedServiceProfiles(t *testing.T) {
	s := parse(t, documented)
	require.Empty(t, s.Warnings)
	voting := s.Profile("voting-svc.emojivoto.svc.cluster.local:8080")
	assert.Equal(t, "VoteJoy", routed(t, voting, "POST /emojivoto.v1.VotingService/VoteJoy"))
	assert.Empty(t, routed(t, voting, "POST /emojivoto.v1.VotingServices/VoteJoy"))
	assert.NotNil(t, voting.Routes[1].Retry)
	authors := s.Profile("authors.booksapp.svc.cluster.local:7001")
	assert.Equal(t, "HEAD /authors/{id}.json", routed(t, authors, "HEAD /authors/3252.json"))
	assert.Equal(t, "GET /api/vote", routed(t, s.Profile("web-svc.emojivoto.svc.cluster.local:80"), "GET /api/vote"))
	assert.Equal(t, []profiles.Target{
		{Authority: "podinfo-primary.test.svc.cluster.local.:9898", Weight: 950000},
		{Authority: "podinfo-canary.test.svc.cluster.local.:9898", Weight: 50000},
	}, s.Profile("podinfo.test.svc.cluster.local:9898").Targets)
}

// Seven hundred routes in one file of 220 kB.
func BenchmarkParseOpenAPI(b *testing.B) {
	data := []byte(openAPI(100))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Parse("f", data); err != nil {
			b.Fatal(err)
		}
	}
}
