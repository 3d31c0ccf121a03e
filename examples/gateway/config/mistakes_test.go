package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// base is a valid file. Each mistake replaces a part of it.
const base = `listeners:
- name: http
  address: 127.0.0.1:8080
services:
- name: books
  static:
    addresses: ["10.0.0.1:80"]
- name: carts
  dns: {name: "carts.example:80"}
routes:
- name: books
  matches:
  - path: {prefix: /books}
  backendRefs:
  - name: books
`

func replaceOnce(t *testing.T, text, from, to string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, from), from)
	return strings.Replace(text, from, to, 1)
}

const (
	listener = "  address: 127.0.0.1:8080\n"
	static   = "  static:\n    addresses: [\"10.0.0.1:80\"]\n"
	match    = "  - path: {prefix: /books}\n"
	backend  = "  - name: books\n"
)

// mistakes are replacements with the errors that they cause.
var mistakes = []struct{ from, to, want string }{
	{"", "listeners: [",
		"gateway.yaml:1: not YAML: did not find expected node content"},
	{"", "",
		"gateway.yaml:1: want one document, not none"},
	{"", "a: 1\n---\nb: 2\n",
		"gateway.yaml:1: want one document, not several"},
	{"", "- a\n",
		"gateway.yaml:1:1: want a mapping, not a list"},
	{"", "routes: []\n",
		"gateway.yaml:1:1: listeners: missing: listeners is required, unless kubernetes is present"},
	{"", "listeners: []\nroutes: []\n",
		"gateway.yaml:1:12: listeners: want at least one listener"},
	{"listeners:\n", "listner: []\nlisteners:\n",
		`gateway.yaml:1:1: listner: unknown field: there are accessLog, admin, defaults, drainDelay, drainTimeout, include, kubernetes, listeners, rateLimitService, retryBudget, routes, services, tcpRoutes, tracing`},
	{"listeners:\n", "tracing: {endpoint: \"collector:4318\", sampleRatio: 2}\nlisteners:\n",
		`gateway.yaml:1:21: tracing.endpoint "collector:4318": want a URL with the scheme http or https, such as https://books.example/path
gateway.yaml:1:52: tracing.sampleRatio "2": want a number from 0 to 1`},
	{"listeners:\n", "tracing: {}\nlisteners:\n",
		"gateway.yaml:1:10: tracing.endpoint: missing: endpoint is required"},
	{"listeners:\n", "listeners: []\nlisteners:\n",
		`gateway.yaml:2:1: listeners: given twice, first in line 1: take one out`},
	{listener, "  address: 8080\n",
		`gateway.yaml:3:12: listeners[0].address "8080": want an IP address with a port, such as 127.0.0.1:8080, or :8080`},
	{listener, "  address: books.example:80\n",
		`gateway.yaml:3:12: listeners[0].address "books.example:80": want an IP address with a port, such as 127.0.0.1:8080, or :8080`},
	{listener, "  address: 127.0.0.1:99999\n",
		`gateway.yaml:3:12: listeners[0].address "127.0.0.1:99999": want an IP address with a port, such as 127.0.0.1:8080, or :8080`},
	{listener, "  address:\n",
		"gateway.yaml:3:11: listeners[0].address: missing: address is required"},
	{listener, "  address: &a 127.0.0.1:8080\n  idleTimeout: *a\n",
		"gateway.yaml:4:16: listeners[0].idleTimeout: want a single value, not an alias (write out the value of *a)"},
	{listener, listener + "  protocol: http\n",
		`gateway.yaml:4:13: listeners[0].protocol "http": want one of HTTP, HTTPS, TCP`},
	{listener, listener + "  protocol: HTTPS\n",
		"gateway.yaml:2:3: listeners[0].tls: missing: protocol HTTPS needs tls with certificates or acme"},
	{listener, listener + "  tls: {certificates: []}\n",
		"gateway.yaml:4:23: listeners[0].tls.certificates: want at least one certificate"},
	{listener, listener + "  protocol: HTTPS\n  tls: {certificates: []}\n",
		"gateway.yaml:5:23: listeners[0].tls.certificates: want at least one certificate"},
	{listener, listener + "  protocol: HTTPS\n  tls: {}\n",
		"gateway.yaml:5:8: listeners[0].tls: missing: want exactly one of certificates, acme"},
	{listener, listener + "  protocol: HTTPS\n  tls: {certificates: [{certificateChain: none.crt, privateKey: text}]}\n",
		`gateway.yaml:5:43: listeners[0].tls.certificates[0].certificateChain "none.crt": want a file that can be read: open none.crt: no such file or directory`},
	{listener, listener + "  protocol: HTTPS\n  tls: {certificates: [{certificateChain: text, privateKey: text}]}\n",
		`gateway.yaml:5:43: listeners[0].tls.certificates[0].certificateChain "text": want a certificate and its private key in PEM: failed to find any PEM data in certificate input`},
	{listener, listener + "  protocol: HTTPS\n  tls: {minVersion: 1.1, acme: {domains: [a.example], cacheDirectory: acme}}\n",
		`gateway.yaml:5:21: listeners[0].tls.minVersion "1.1": want one of 1.2, 1.3`},
	{listener, listener + "  protocol: HTTPS\n  tls: {acme: {domains: [\"*.example\"], cacheDirectory: acme}}\n",
		`gateway.yaml:5:26: listeners[0].tls.acme.domains[0] "*.example": want a name without *, because its challenges need DNS`},
	{listener, listener + "  protocol: HTTPS\n  tls: {acme: {domains: [a.example], cacheDirectory: acme}, clientValidation: {caCertificates: text}}\n",
		`gateway.yaml:5:96: listeners[0].tls.clientValidation.caCertificates "text": want a file with certificates in PEM`},
	{listener, listener + "  tls: {acme: {domains: [a.example], cacheDirectory: acme}}\n",
		"gateway.yaml:4:8: listeners[0].tls: want protocol: HTTPS beside tls"},
	{listener, listener + "  idleTimeout: 10\n",
		`gateway.yaml:4:16: listeners[0].idleTimeout "10": want a duration such as 300ms, 10s or 1m30s`},
	{listener, listener + "  idleTimeout: -1s\n",
		`gateway.yaml:4:16: listeners[0].idleTimeout "-1s": want a duration such as 300ms, 10s or 1m30s`},
	{listener, listener + "  maxHeaderBytes: 10\n",
		`gateway.yaml:4:19: listeners[0].maxHeaderBytes "10": want a whole number from 1024 to 1048576`},
	{listener, listener + "  maxConnections: many\n",
		`gateway.yaml:4:19: listeners[0].maxConnections "many": want a whole number from 0 to 10000000`},
	{listener, listener + "  proxyProtocol: true\n",
		`gateway.yaml:4:18: listeners[0].proxyProtocol "true": want a list with the addresses of load balancers, such as [10.0.0.0/8], not a single value`},
	{listener, listener + "  proxyProtocol: [lb.example]\n",
		`gateway.yaml:4:19: listeners[0].proxyProtocol[0] "lb.example": want a range of IP addresses such as 10.0.0.0/8`},
	{listener, listener + "  protocol: HTTPS\n  tls: {acme: {domains: [a.example], cacheDirectory: c}, clientValidation: {caCertificates: c, forwardCertificate: Yes}}\n",
		`gateway.yaml:5:93: listeners[0].tls.clientValidation.caCertificates "c": want a file that can be read: open c: no such file or directory
gateway.yaml:5:116: listeners[0].tls.clientValidation.forwardCertificate "Yes": want one of None, Certificate, Chain`},
	{listener, listener + "  keepRequestTrailers: 1\n",
		`gateway.yaml:4:24: listeners[0].keepRequestTrailers "1": want true or false`},
	{listener, listener + "  requestBodyIdleTimeout: 60\n",
		`gateway.yaml:4:27: listeners[0].requestBodyIdleTimeout "60": want a duration such as 300ms, 10s or 1m30s`},
	{listener, listener + "  path: {mergeSlashes: yes}\n",
		`gateway.yaml:4:24: listeners[0].path.mergeSlashes "yes": want true or false`},
	{listener, listener + "  path: {allow: [\"%2F\", \"%2e\"]}\n",
		`gateway.yaml:4:25: listeners[0].path.allow[1] "%2e": want one of %2F, %5C, %3B, %00, \, ;`},
	{listener, listener + "  path: {normalize: false, allow: [\"%2F\"]}\n",
		`gateway.yaml:4:21: listeners[0].path.normalize "false": want true beside mergeSlashes and allow`},
	{listener, listener + "  trustedProxies: [10.0.0.0/33]\n",
		`gateway.yaml:4:20: listeners[0].trustedProxies[0] "10.0.0.0/33": want a range of IP addresses such as 10.0.0.0/8`},
	{listener, listener + "  requestHeadersTimeout: 0s\n",
		`gateway.yaml:4:26: listeners[0].requestHeadersTimeout "0s": want a duration above 0`},
	{listener, listener + "  compression: {contentTypes: [text/*, Text/HTML, text/html; charset=utf-8, html, text/html]}\n",
		`gateway.yaml:4:32: listeners[0].compression.contentTypes[0] "text/*": want a content type in lower case, such as text/html
gateway.yaml:4:40: listeners[0].compression.contentTypes[1] "Text/HTML": want a content type in lower case, such as text/html
gateway.yaml:4:51: listeners[0].compression.contentTypes[2] "text/html; charset=utf-8": want a content type in lower case, such as text/html
gateway.yaml:4:77: listeners[0].compression.contentTypes[3] "html": want a content type in lower case, such as text/html`},
	{listener, listener + "  compression: {minBytes: 0}\n",
		`gateway.yaml:4:27: listeners[0].compression.minBytes "0": want a whole number from 1 to 1073741824`},
	{listener, listener + "- name: http\n  address: :8081\n",
		`gateway.yaml:4:9: listeners[1].name "http": given twice: want another name`},
	{listener, listener + "- name: other\n  address: 127.0.0.1:8080\n",
		`gateway.yaml:5:12: listeners[1].address "127.0.0.1:8080": the address of listener http: want another one`},
	{"services:\n", "admin: {tap: 0.0.0.0:4190}\nservices:\n",
		`gateway.yaml:4:14: admin.tap "0.0.0.0:4190": want a loopback address with a port, such as 127.0.0.1:4190, or "off"`},
	{"services:\n", "admin: {tap: everywhere}\nservices:\n",
		`gateway.yaml:4:14: admin.tap "everywhere": want a loopback address with a port, such as 127.0.0.1:4190, or "off"`},
	{"services:\n", "admin: {address: localhost}\nservices:\n",
		`gateway.yaml:4:18: admin.address "localhost": want an IP address with a port, such as 127.0.0.1:8080, or :8080`},
	{"services:\n", "accessLog: {format: common, fields: [status]}\nservices:\n",
		`gateway.yaml:4:37: accessLog.fields: want format: json beside fields`},
	{"services:\n", "accessLog: {fields: [code]}\nservices:\n", `gateway.yaml:4:22: accessLog.fields[0] "code": want one of aborted, attempts, ` +
		`client.addr, client.id, client.ip, endpoint, error, grpc_status, host, method, processing_ns, request_bytes, response_bytes, route, status, ` +
		`timestamp, total_ns, trace_id, upstream, uri, user_agent, version`},
	{"services:\n", "accessLog: {format: xml}\nservices:\n",
		`gateway.yaml:4:21: accessLog.format "xml": want one of json, common, combined, off`},
	{"services:\n", "retryBudget: {interval: 2m}\nservices:\n",
		`gateway.yaml:4:25: retryBudget.interval "2m": want a duration from 1s to 60s`},
	{"- name: carts\n", "- name: Carts\n",
		`gateway.yaml:8:9: services[1].name "Carts": want lower-case letters, digits, '-' and '.', such as books-v1`},
	{"- name: carts\n", "- name: books\n",
		`gateway.yaml:8:9: services[1].name "books": given twice: want another name`},
	{static, "",
		"gateway.yaml:5:3: services[0]: missing: want exactly one of static, dns, kubernetes, linkerd, directResponse"},
	{static, static + "  kubernetes: {name: \"books.shop:80\"}\n",
		"gateway.yaml:5:3: services[0]: static and kubernetes exclude each other: want exactly one of static, dns, kubernetes, linkerd, directResponse"},
	{static, "  static: {addresses: []}\n",
		"gateway.yaml:6:23: services[0].static.addresses: want at least one address, such as 10.0.0.1:80"},
	{static, "  static: {addresses: [books.example:80]}\n",
		`gateway.yaml:6:24: services[0].static.addresses[0] "books.example:80": want an IP address with a port, such as 10.0.0.1:80, or a socket such as unix:/run/app.sock; use dns for names`},
	{static, "  static: 10.0.0.1:80\n",
		`gateway.yaml:6:11: services[0].static "10.0.0.1:80": want a mapping, not a single value`},
	{static, "  kubernetes: {name: books}\n",
		`gateway.yaml:6:22: services[0].kubernetes.name "books": want a Service with its namespace and port, such as books.shop:80`},
	{static, "  linkerd: {name: books.shop}\n",
		`gateway.yaml:6:19: services[0].linkerd.name "books.shop": want a host with a port, such as books.example:80 or 10.0.0.1:80`},
	{static, static + "  healthCheck: {}\n",
		"gateway.yaml:8:16: services[0].healthCheck: missing: want exactly one of path, grpc, tcp"},
	{static, static + "  healthCheck: {tcp: true, hostname: a.example, expectedStatuses: [200]}\n",
		`gateway.yaml:8:38: services[0].healthCheck.hostname "a.example": want path beside hostname
gateway.yaml:8:67: services[0].healthCheck.expectedStatuses: want path beside expectedStatuses`},
	{static, static + "  healthCheck: {path: /, hostname: a b, headers: [{name: Host, value: a}]}\n",
		`gateway.yaml:8:36: services[0].healthCheck.hostname "a b": want a host name with an optional port, such as books.example
gateway.yaml:8:58: services[0].healthCheck.headers[0].name "Host": cannot be sent: use hostname for Host, and leave out fields of the connection`},
	{static, static + "  healthCheck: {path: /, expectedStatuses: [2xx]}\n",
		`gateway.yaml:8:45: services[0].healthCheck.expectedStatuses[0] "2xx": want an HTTP status from 200 to 599`},
	{static, static + "  healthCheck: {path: /healthz, interval: 0s}\n",
		`gateway.yaml:8:43: services[0].healthCheck.interval "0s": want a duration of at least 1ms`},
	{static, static + "  sessionPersistence: {sessionName: s}\n  loadBalancer: {policy: Random}\n",
		"gateway.yaml:8:23: services[0].sessionPersistence: want no loadBalancer.policy beside sessionPersistence, because that uses consistent hashing"},
	{static, static + "  protocol: h2\n",
		`gateway.yaml:8:13: services[0].protocol "h2": want one of Auto, HTTP1, HTTP2`},
	{static, static + "  tls: {}\n",
		"gateway.yaml:8:8: services[0].tls.serverName: missing: serverName is required, unless insecureSkipVerify is true"},
	{static, static + "  tls: {serverName: books.example, caCertificates: text}\n",
		`gateway.yaml:8:52: services[0].tls.caCertificates "text": want a file with certificates in PEM`},
	{static, static + "  tls: {serverName: https://books.example}\n",
		`gateway.yaml:8:21: services[0].tls.serverName "https://books.example": want a DNS name without a port, such as books.example or *.books.example`},
	{static, static + "  loadBalancer: {policy: Fastest}\n",
		`gateway.yaml:8:26: services[0].loadBalancer.policy "Fastest": want one of EWMA, LeastRequest, RoundRobin, Random, ConsistentHash`},
	{static, static + "  loadBalancer: {policy: ConsistentHash}\n",
		"gateway.yaml:8:17: services[0].loadBalancer.hash: missing: policy ConsistentHash needs hash"},
	{static, static + "  loadBalancer: {policy: ConsistentHash, hash: {header: a, cookie: b}}\n",
		"gateway.yaml:8:48: services[0].loadBalancer.hash: header and cookie exclude each other: want exactly one of header, cookie, queryParam, sourceIP"},
	{static, static + "  queue: {maxWait: 0s}\n",
		`gateway.yaml:8:20: services[0].queue.maxWait "0s": want a duration above 0`},
	{static, static + "  connectTimeout: 0s\n",
		`gateway.yaml:8:19: services[0].connectTimeout "0s": want a duration above 0`},
	{static, static + "  loadBalancer: {slowStart: 25h}\n",
		`gateway.yaml:8:29: services[0].loadBalancer.slowStart "25h": want a duration of at most 24h`},
	{static, static + "  outlierDetection: {interval: 2h, baseEjectionTime: 0s}\n",
		`gateway.yaml:8:32: services[0].outlierDetection.interval "2h": want 0s, or a duration from 1ms to 1h
gateway.yaml:8:54: services[0].outlierDetection.baseEjectionTime "0s": want a duration of at least 1ms`},
	{static, static + "  outlierDetection: {maxEjectionPercent: 100}\n",
		`gateway.yaml:8:42: services[0].outlierDetection.maxEjectionPercent "100": want a number from 0 to 99`},
	{"carts.example:80", "https://carts.example",
		`gateway.yaml:9:15: services[1].dns.name "https://carts.example": want a DNS name with a port, such as books.example:80, or without one for SRV records`},
	{backend, "  - name: book\n",
		`gateway.yaml:15:11: routes[0].backendRefs[0].name "book": unknown service: want one of books, carts`},
	{backend, "  - books\n",
		`gateway.yaml:15:5: routes[0].backendRefs[0] "books": want a mapping, not a single value`},
	{backend, "  - {name: books, weight: -1}\n",
		`gateway.yaml:15:27: routes[0].backendRefs[0].weight "-1": want a whole number from 0 to 1000000`},
	{backend, "  - {name: books, weight: 0}\n",
		"gateway.yaml:15:3: routes[0].backendRefs: want at least one service with a weight above 0"},
	{backend, "  - {name: books}\n  - {name: books}\n",
		`gateway.yaml:16:12: routes[0].backendRefs[1].name "books": given twice: want each service once`},
	{"  backendRefs:\n  - name: books\n", "",
		"gateway.yaml:11:3: routes[0]: missing: want exactly one of backendRefs, requestRedirect, directResponse, staticFiles"},
	{"  backendRefs:\n", "  directResponse: {status: 200}\n  backendRefs:\n",
		"gateway.yaml:11:3: routes[0]: backendRefs and directResponse exclude each other: want exactly one of backendRefs, requestRedirect, directResponse, staticFiles"},
	{"  backendRefs:\n", "  listeners: [https]\n  backendRefs:\n",
		`gateway.yaml:14:15: routes[0].listeners[0] "https": unknown listener: want one of http`},
	{"  backendRefs:\n", "  hostnames: [\"books.*\"]\n  backendRefs:\n",
		`gateway.yaml:14:15: routes[0].hostnames[0] "books.*": want a DNS name without a port, such as books.example or *.books.example`},
	{"  backendRefs:\n", "  timeouts: {request: 1s, backendRequest: 2s}\n  backendRefs:\n",
		`gateway.yaml:14:43: routes[0].timeouts.backendRequest "2s": want at most request, which is 1s`},
	{"  backendRefs:\n", "  timeout: 1s\n  backendRefs:\n",
		`gateway.yaml:14:3: routes[0].timeout: unknown field: there are backendRefs, basicAuth, clientCIDRs, cors, directResponse, externalAuth, faults, globalRateLimits, hedge, hostnames, jwt, listeners, matches, maxRequestBodyBytes, maxRequests, name, rateLimit, requestHeaderModifier, requestMirrors, requestRedirect, responseHeaderModifier, retry, staticFiles, timeouts, urlRewrite`},
	{"  backendRefs:\n", "  retry: {attempts: 100}\n  backendRefs:\n",
		`gateway.yaml:14:21: routes[0].retry.attempts "100": want a whole number from 0 to 99`},
	{"  backendRefs:\n", "  retry: {codes: [1000]}\n  backendRefs:\n",
		`gateway.yaml:14:19: routes[0].retry.codes[0] "1000": want an HTTP status from 200 to 599`},
	{"  backendRefs:\n", "  hedge: {}\n  backendRefs:\n",
		"gateway.yaml:14:10: routes[0].hedge.delay: missing: delay is required"},
	{"  backendRefs:\n", "  rateLimit: {burst: 5}\n  backendRefs:\n",
		"gateway.yaml:14:14: routes[0].rateLimit.requestsPerSecond: missing: requestsPerSecond is required"},
	{"  backendRefs:\n", "  rateLimit: {requestsPerSecond: 0}\n  backendRefs:\n",
		`gateway.yaml:14:34: routes[0].rateLimit.requestsPerSecond "0": want a number from 0.001 to 10000000`},
	{"  backendRefs:\n", "  rateLimit: {requestsPerSecond: 1, per: Header}\n  backendRefs:\n",
		"gateway.yaml:14:14: routes[0].rateLimit.header: missing: per: Header needs the name of a header field"},
	{"  backendRefs:\n", "  rateLimit: {requestsPerSecond: 1, header: X-API-Key}\n  backendRefs:\n",
		`gateway.yaml:14:45: routes[0].rateLimit.header "X-API-Key": want it only with per: Header`},
	{"  backendRefs:\n", "  requestHeaderModifier: {set: [{name: \"X Y\", value: a}]}\n  backendRefs:\n",
		`gateway.yaml:14:40: routes[0].requestHeaderModifier.set[0].name "X Y": want the name of a header field, such as X-User`},
	{"  backendRefs:\n", "  requestHeaderModifier: {set: {X-A: b}}\n  backendRefs:\n",
		"gateway.yaml:14:32: routes[0].requestHeaderModifier.set: want a list, not a mapping"},
	{"  backendRefs:\n", "  requestHeaderModifier: {set: [{name: Connection, value: close}]}\n  backendRefs:\n",
		`gateway.yaml:14:40: routes[0].requestHeaderModifier.set[0].name "Connection": cannot be changed: set "Connection": belongs to the connection, not to the message`},
	{"  backendRefs:\n", "  urlRewrite: {path: {replaceFullPath: books}}\n  backendRefs:\n",
		`gateway.yaml:14:40: routes[0].urlRewrite.path.replaceFullPath "books": want a path that begins with /, without a query, percent-encoded`},
	{match, "  - path: {exact: /books}\n  urlRewrite: {path: {replacePrefixMatch: /v1}}\n",
		`gateway.yaml:14:43: routes[0].urlRewrite.path.replacePrefixMatch "/v1": want exactly one match with path: {prefix: ...}, because its prefix is replaced`},
	{"  backendRefs:\n", "  requestMirrors: [{backendRef: {name: next}}]\n  backendRefs:\n",
		`gateway.yaml:14:40: routes[0].requestMirrors[0].backendRef.name "next": unknown service: want one of books, carts`},
	{"  backendRefs:\n", "  requestMirrors: [{backendRef: {name: carts}, percent: 101}]\n  backendRefs:\n",
		`gateway.yaml:14:57: routes[0].requestMirrors[0].percent "101": want a number from 0.001 to 100`},
	{"  backendRefs:\n", "  faults: [{}]\n  backendRefs:\n",
		"gateway.yaml:14:12: routes[0].faults[0]: want at least one of fixedDelay, abort"},
	{"  backendRefs:\n", "  faults: [{percentage: 60, fixedDelay: 1s}, {percentage: 60, fixedDelay: 2s}]\n  backendRefs:\n",
		"gateway.yaml:14:11: routes[0].faults: want percentages with a sum of at most 100, not 120"},
	{"  backendRefs:\n", "  faults: [{abort: {httpStatus: 200}}]\n  backendRefs:\n",
		`gateway.yaml:14:33: routes[0].faults[0].abort.httpStatus "200": want a whole number from 400 to 599`},
	{"  backendRefs:\n", "  cors: {allowOrigins: [books.example]}\n  backendRefs:\n",
		`gateway.yaml:14:25: routes[0].cors.allowOrigins[0] "books.example": want an origin such as https://books.example or https://*.example, or "*"`},
	{"  backendRefs:\n", "  cors: {allowOrigins: [\"*\"], allowCredentials: true}\n  backendRefs:\n",
		`gateway.yaml:14:24: routes[0].cors.allowOrigins: want a list of origins beside allowCredentials, because "*" would allow every page`},
	{"  backendRefs:\n", "  externalAuth: {backendRef: {name: auth}}\n  backendRefs:\n",
		`gateway.yaml:14:37: routes[0].externalAuth.backendRef.name "auth": unknown service: want one of books, carts`},
	{match, "  - path: {exact: /a, prefix: /b}\n",
		"gateway.yaml:13:11: routes[0].matches[0].path: exact and prefix exclude each other: want exactly one of exact, prefix, pattern, regularExpression"},
	{match, "  - path: {prefix: books}\n",
		`gateway.yaml:13:20: routes[0].matches[0].path.prefix "books": want a path that begins with /, without a query, percent-encoded`},
	{match, "  - path: {exact: \"/a b\"}\n",
		`gateway.yaml:13:19: routes[0].matches[0].path.exact "/a b": want a path that begins with /, without a query, percent-encoded`},
	{match, "  - path: {pattern: \"/books/{id\"}\n",
		`gateway.yaml:13:21: routes[0].matches[0].path.pattern "/books/{id": want a path with placeholders for whole segments, such as /books/{id}`},
	{match, "  - path: {regularExpression: \"/books/(\"}\n",
		"gateway.yaml:13:31: routes[0].matches[0].path.regularExpression \"/books/(\": want a regular expression of Go: error parsing regexp: missing closing ): `/books/(`"},
	{match, "  - path: {regularExpression: \"/(a{1000}){1000}\"}\n",
		"gateway.yaml:13:31: routes[0].matches[0].path.regularExpression \"/(a{1000}){1000}\": want a regular expression of Go: error parsing regexp: invalid repeat count: `{1000}`"},
	{match, "  - method: get\n",
		`gateway.yaml:13:13: routes[0].matches[0].method "get": want an HTTP method in upper case, such as GET`},
	{match, "  - {}\n",
		"gateway.yaml:13:5: routes[0].matches[0]: want at least one of path, method, headers, queryParams, grpc, clientCIDRs"},
	{match, "  - headers: [{name: Host, exact: a}]\n",
		`gateway.yaml:13:22: routes[0].matches[0].headers[0].name "Host": want hostnames of the route instead of the header Host`},
	{match, "  - headers: [{name: X-A}]\n",
		"gateway.yaml:13:15: routes[0].matches[0].headers[0]: missing: want exactly one of exact, prefix, regularExpression, present"},
	{match, "  - {grpc: {service: books.v1.Books}, method: POST}\n",
		"gateway.yaml:13:12: routes[0].matches[0].grpc: grpc excludes path and method, because a gRPC call is a POST to /service/method"},
	{match, "  - grpc: {service: /books.v1.Books}\n",
		`gateway.yaml:13:21: routes[0].matches[0].grpc.service "/books.v1.Books": want a name without '/', such as books.v1.Books`},
	{"  backendRefs:\n  - name: books\n", "  requestRedirect: {}\n",
		"gateway.yaml:14:20: routes[0].requestRedirect: want at least one of scheme, hostname, port, path, statusCode"},
	{"  backendRefs:\n  - name: books\n", "  requestRedirect: {scheme: https, statusCode: 200}\n",
		`gateway.yaml:14:48: routes[0].requestRedirect.statusCode "200": want one of 301, 302, 303, 307, 308`},
	{"  backendRefs:\n  - name: books\n", "  directResponse: {status: 99}\n",
		`gateway.yaml:14:28: routes[0].directResponse.status "99": want an HTTP status from 200 to 599`},
	{"  backendRefs:\n  - name: books\n", "  staticFiles: {root: none}\n",
		`gateway.yaml:14:23: routes[0].staticFiles.root "none": want a folder`},
	{"  backendRefs:\n", "  requestHeaderModifier: {set: [{name: X-A, value: \"{client} {host}\"}]}\n  backendRefs:\n",
		`gateway.yaml:14:52: routes[0].requestHeaderModifier.set[0].value "{client} {host}": unknown variable {client}: want one of client_ip, host, listener, method, path, request_id, route, scheme`},
	{"  backendRefs:\n", "  requestHeaderModifier: {set: [{name: X-A, value: \"{host}\"}], remove: [Host]}\n  backendRefs:\n",
		`gateway.yaml:14:26: routes[0].requestHeaderModifier: remove "Host": can only be set, not added or removed`},
	{static, "  static: {endpoints: [{address: \"10.0.0.1:80\", weight: 0}]}\n",
		`gateway.yaml:6:57: services[0].static.endpoints[0].weight "0": want a whole number from 1 to 1000`},
	{static, "  static: {addresses: [\"unix:/run/a.sock\"]}\n  healthCheck: {tcp: true}\n",
		`gateway.yaml:7:22: services[0].healthCheck.tcp "true": want path or grpc for the Unix socket unix:/run/a.sock`},
	{listener, listener + "  protocol: TCP\n  basicAuth: {users: [\"a:$2a$04$Bh8p3g1Gdm3Vd8SL9H9XVuT8KQ5mOkj3DqOzhk1Qbq1IuCYmYxp8q\"]}\n",
		"gateway.yaml:5:14: listeners[0].basicAuth: want protocol HTTP or HTTPS beside basicAuth"},
	{"routes:\n", "tcpRoutes:\n- {name: a, listeners: [http, other], backendRefs: [{name: books, weight: 1}, {name: other}]}\nroutes:\n",
		`gateway.yaml:11:25: tcpRoutes[0].listeners[0] "http": want a listener with the protocol TCP
gateway.yaml:11:31: tcpRoutes[0].listeners[1] "other": unknown listener: want one of http
gateway.yaml:11:86: tcpRoutes[0].backendRefs[1].name "other": unknown service: want one of books, carts`},
	{"  dns: {name: \"carts.example:80\"}\nroutes:\n", "  dns: {name: \"carts.example:80\"}\n  healthCheck: {path: /}\n" +
		"tcpRoutes: [{name: a, backendRefs: [{name: carts}]}]\nroutes:\n",
		"gateway.yaml:10:16: services[1].healthCheck: want tcp: true, because tcpRoutes refers to the service"},
	{static, static + "  proxyProtocol: {}\n",
		"gateway.yaml:8:18: services[0].proxyProtocol: want a service to which only tcpRoutes refer"},
	{"routes:\n", "tcpRoutes: [{name: a, backendRefs: [{name: books, weight: 0}]}]\nroutes:\n",
		"gateway.yaml:10:36: tcpRoutes[0].backendRefs: want at least one service with a weight above 0"},
	{"  backendRefs:\n", "  globalRateLimits: [{actions: [{remoteAddress: {}}]}]\n  backendRefs:\n",
		"gateway.yaml:14:21: routes[0].globalRateLimits: want rateLimitService in the file, because it counts the requests"},
	{"routes:\n", "rateLimitService: {backendRef: {name: cart}, domain: a}\nroutes:\n",
		`gateway.yaml:10:39: rateLimitService.backendRef.name "cart": unknown service: want one of books, carts`},
	{"  dns: {name: \"carts.example:80\"}\n", "  dns: {name: \"carts.example:80\"}\n  protocol: HTTP1\n" +
		"rateLimitService: {backendRef: {name: carts}, domain: a}\n",
		`gateway.yaml:11:39: rateLimitService.backendRef.name "carts": want a service with endpoints that have gRPC`},
	{"routes:\n", "rateLimitService: {backendRef: {name: carts}, domain: a, timeout: 0s}\nroutes:\n",
		`gateway.yaml:10:67: rateLimitService.timeout "0s": want a duration above 0`},
	{"  backendRefs:\n", "  globalRateLimits: [{actions: []}, {actions: [{genericKey: {}}]}]\n  backendRefs:\n",
		"gateway.yaml:14:32: routes[0].globalRateLimits[0].actions: want at least one action\n" +
			"gateway.yaml:14:61: routes[0].globalRateLimits[1].actions[0].genericKey.descriptorValue: missing: descriptorValue is required"},
	{listener, listener + "  clientCIDRs: {}\n",
		"gateway.yaml:4:16: listeners[0].clientCIDRs: want at least one address in allow or deny"},
	{"  backendRefs:\n", "  clientCIDRs: {allow: [10.0.0.0/33]}\n  backendRefs:\n",
		`gateway.yaml:14:25: routes[0].clientCIDRs.allow[0] "10.0.0.0/33": want a range of IP addresses such as 10.0.0.0/8`},
	{match, "  - clientCIDRs: [all]\n",
		`gateway.yaml:13:19: routes[0].matches[0].clientCIDRs[0] "all": want a range of IP addresses such as 10.0.0.0/8`},
	{"  backendRefs:\n", "  basicAuth: {users: [\"emma:secret\"]}\n  backendRefs:\n",
		"gateway.yaml:14:23: routes[0].basicAuth.users[0]: want NAME:HASH with a bcrypt hash, as htpasswd -nB NAME prints it"},
	{"  backendRefs:\n", "  basicAuth: {usersFile: text}\n  backendRefs:\n",
		`gateway.yaml:14:26: routes[0].basicAuth.usersFile "text": line 1: want NAME:HASH with a bcrypt hash, as htpasswd -nB NAME prints it`},
	{"  backendRefs:\n", "  basicAuth: {users: []}\n  backendRefs:\n",
		"gateway.yaml:14:14: routes[0].basicAuth: want at least one user"},
	{"  backendRefs:\n", "  basicAuth: {realm: a}\n  backendRefs:\n",
		"gateway.yaml:14:14: routes[0].basicAuth: missing: want exactly one of usersFile, users"},
	{"  backendRefs:\n", "  jwt: {localJWKS: text}\n  backendRefs:\n",
		`gateway.yaml:14:20: routes[0].jwt.localJWKS "text": want a file with a JSON Web Key Set: invalid character 'o' in literal null (expecting 'u')`},
	{"  backendRefs:\n", "  jwt: {remoteJWKS: {uri: login.example}}\n  backendRefs:\n",
		`gateway.yaml:14:27: routes[0].jwt.remoteJWKS.uri "login.example": want a URL with the scheme http or https, such as https://books.example/path`},
	{"  backendRefs:\n", "  maxRequestBodyBytes: 1M\n  backendRefs:\n",
		`gateway.yaml:14:24: routes[0].maxRequestBodyBytes "1M": want a whole number from 0 to 1000000000000`},
	{"listeners:\n", "kubernetes: {controllerName: gateway}\nlisteners:\n",
		`gateway.yaml:1:30: kubernetes.controllerName "gateway": want a domain and a path, such as example.com/gateway`},
	{"listeners:\n", "kubernetes: {addresses: [\"192.0.2.1:80\"]}\nlisteners:\n",
		`gateway.yaml:1:26: kubernetes.addresses[0] "192.0.2.1:80": want an IP address or a host name`},
	{"listeners:\n", "kubernetes: {ingressHTTPS: \":80\"}\nlisteners:\n",
		`gateway.yaml:1:28: kubernetes.ingressHTTPS ":80": want another address than ingressHTTP`},
	{"routes:\n", "routes:\n- {name: old, backendRefs: [{name: books}], requestHeaderModifier: {remove: [Host]}}\n" +
		"- {name: new, backendRefs: [{name: books}], responseHeaderModifier: {remove: [Connection]}}\n",
		`gateway.yaml:11:68: routes[0].requestHeaderModifier: remove "Host": can only be set, not added or removed
gateway.yaml:12:69: routes[1].responseHeaderModifier: remove "Connection": belongs to the connection, not to the message`},
	{"  backendRefs:\n  - name: books\n", "  directResponse: {status: teapot, body: [a]}\n",
		"gateway.yaml:14:28: routes[0].directResponse.status \"teapot\": want an HTTP status from 200 to 599\n" +
			"gateway.yaml:14:42: routes[0].directResponse.body: want a single value, not a list"},
}

func TestConfigMistakes(t *testing.T) {
	_, err := Parse("gateway.yaml", []byte(base))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(mistakes), 60)
	dir := t.TempDir()
	path := filepath.Join(dir, "gateway.yaml")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text"), []byte("no certificate"), 0o600))
	for _, m := range mistakes {
		text := m.to
		if m.from != "" {
			text = replaceOnce(t, base, m.from, m.to)
		}
		_, err := Parse(path, []byte(text))
		if assert.Error(t, err, text) {
			assert.Equal(t, m.want, strings.ReplaceAll(err.Error(), dir+"/", ""), text)
		}
	}
}
