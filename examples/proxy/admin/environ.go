package admin

import (
	"encoding/json"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// serveEnviron responds with the environment as JSON, without secrets. A query such as ?A&B selects
// the variables A and B. Selected variables that are not set are null.
func (h *Handler) serveEnviron(w http.ResponseWriter, r *http.Request) {
	if !acceptsJSON(r.Header) {
		writeText(w, http.StatusNotAcceptable, "the response is application/json\n")
		return
	}
	query := r.URL.RawQuery
	if strings.Contains(query, "=") {
		writeJSON(w, http.StatusBadRequest, map[string]string{
			"error": "env.json query parameters may not contain key-value pairs",
		})
		return
	}
	// A nil pointer becomes null in JSON.
	all := map[string]*string{}
	for _, entry := range h.config.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		value = shown(name, value)
		all[name] = &value
	}
	if query == "" {
		writeJSON(w, http.StatusOK, all)
		return
	}
	// all has no entry for a variable that is not set, so its value here is nil.
	some := map[string]*string{}
	for name := range strings.SplitSeq(query, "&") {
		some[name] = all[name]
	}
	writeJSON(w, http.StatusOK, some)
}

// redacted replaces secrets in responses.
const redacted = "(redacted)"

// shown returns the value of the variable name with secrets replaced by [redacted]. It replaces the
// whole value if name contains a word such as TOKEN, or value contains a private key. PWD and
// OLDPWD are exceptions, because they contain directories.
func shown(name, value string) string {
	directory := name == "PWD" || name == "OLDPWD"
	if !directory && isSecret(name) || strings.Contains(value, "PRIVATE KEY-----") {
		return redacted
	}
	return withoutSecrets(withoutUser(value))
}

// login matches user:password@ in text that is not a URL, such as a MySQL data source name.
var login = regexp.MustCompile(`[^\s/:@=,]*:\S*@`)

// withoutUser replaces each user name and password before an "@" by [redacted]. Passwords may
// contain "@", so in a URL they end at the last one. In other text, [login] finds them.
func withoutUser(value string) string {
	// The first part is searched for logins separately, because another one may precede the scheme.
	url := ""
	if scheme, rest, ok := strings.Cut(value, "://"); ok {
		if userEnd := strings.LastIndexByte(rest, '@'); userEnd >= 0 {
			value = scheme
			url = "://" + redacted + rest[userEnd:]
		}
	}
	return login.ReplaceAllString(value, redacted+"@") + url
}

// named matches a name and its value inside a text: k=v, --k v, k: v or "k":"v". Such texts occur
// in environment variables that contain a query, a command line, headers or JSON.
var named = regexp.MustCompile(
	`([\w.-]+)(\s*=\s*|["']\s*:\s*|:\s+|\s+)("(?:[^"\\]|\\.)*"|'[^']*'|(?:(?i:bearer|basic|digest|token)\s+)?[^\s&;]+)`)

// withoutSecrets replaces the secrets in value by [redacted]. A secret is a value that [named]
// finds next to a name for which isSecret returns true. If only a space is between name and value,
// as in "--token abc", the name must also begin with "-", and the value must not. Otherwise
// ordinary sentences would match.
func withoutSecrets(value string) string {
	var b strings.Builder
	for {
		// m holds index pairs: m[2:4] is the name, m[4:6] the separator and m[6:8] the value.
		m := named.FindStringSubmatchIndex(value)
		if m == nil {
			b.WriteString(value)
			return b.String()
		}
		name := value[m[2]:m[3]]
		sep := value[m[4]:m[5]]
		// A flag's value follows after a space. Another "-" begins the next flag instead of a value.
		flag := strings.HasPrefix(name, "-") && value[m[6]] != '-'
		if !isSecret(name) || strings.TrimSpace(sep) == "" && !flag {
			b.WriteString(value[:m[5]]) // the value may contain more names
			value = value[m[5]:]
			continue
		}
		b.WriteString(value[:m[5]] + redacted)
		value = value[m[7]:]
	}
}

// isSecret reports whether a variable or field with this name should be treated as a secret: its
// name contains a word such as TOKEN, PASS or KEY, in upper or lower case. AUTHORITY does not
// count, although it contains AUTH.
func isSecret(name string) bool {
	name = strings.ReplaceAll(strings.ToUpper(name), "AUTHORITY", "")
	return slices.ContainsFunc([]string{
		"TOKEN", "SECRET", "PASS", "PWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE", "DSN", "CONNECTION_STRING",
	}, func(word string) bool { return strings.Contains(name, word) })
}

// writeJSON responds with v as JSON.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // a value that JSON cannot represent
		writeText(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// acceptsJSON reports whether the Accept header allows JSON. A missing header does.
func acceptsJSON(h http.Header) bool {
	accept := h.Values("Accept")
	if len(accept) == 0 {
		return true
	}
	for mediaType := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(mediaType)
		if err != nil {
			continue
		}
		// "q=0" excludes the media type. Invalid values count as 0.
		if q, err := strconv.ParseFloat(params["q"], 64); params["q"] != "" && (err != nil || q <= 0) {
			continue
		}
		if kind == "application/json" || kind == "application/*" || kind == "*/*" {
			return true
		}
	}
	return false
}
