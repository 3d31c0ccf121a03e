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

// serveEnviron responds with the environment as JSON, without secrets. A query such as
// ?A&B limits the response to the variables A and B. A requested variable that is not set
// is null.
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
	some := map[string]*string{}
	for name := range strings.SplitSeq(query, "&") {
		some[name] = all[name]
	}
	writeJSON(w, http.StatusOK, some)
}

// redacted is the text that replaces a secret in a response.
const redacted = "(redacted)"

// shown returns the value of the variable with the given name, with its secrets replaced by
// [redacted]. If the name contains a word such as TOKEN, or the value contains a private
// key, shown replaces the whole value. The names PWD and OLDPWD do not count as secret,
// because their values are directories.
func shown(name, value string) string {
	directory := name == "PWD" || name == "OLDPWD"
	if !directory && isSecret(name) || strings.Contains(value, "PRIVATE KEY-----") {
		return redacted
	}
	return withoutSecrets(withoutUser(value))
}

// login matches user:password@ in text that is not a URL, such as the data source name of
// MySQL.
var login = regexp.MustCompile(`[^\s/:@=,]*:\S*@`)

// withoutUser returns value with [redacted] in place of each user name and password before
// an "@". In a URL, the password ends at the last "@", because a password may contain "@".
// In other text, the regular expression [login] finds user:password.
func withoutUser(value string) string {
	url := ""
	if before, rest, ok := strings.Cut(value, "://"); ok {
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			value, url = before, "://"+redacted+rest[at:]
		}
	}
	return login.ReplaceAllString(value, redacted+"@") + url
}

// named matches a name and its value in a text: k=v, --k v, k: v or "k":"v". The value of
// an environment variable may be such a text: a query, a command line, headers or JSON.
var named = regexp.MustCompile(
	`([\w.-]+)(\s*=\s*|["']\s*:\s*|:\s+|\s+)("(?:[^"\\]|\\.)*"|'[^']*'|(?:(?i:bearer|basic|digest|token)\s+)?[^\s&;]+)`)

// withoutSecrets returns value with secrets replaced by [redacted]. The regular expression
// [named] finds each pair of a name and a value. The value is a secret if isSecret returns
// true for the name. If only a space separates name and value, as in "--token abc", the
// name must also begin with "-", and the value must not.
func withoutSecrets(value string) string {
	var b strings.Builder
	for {
		m := named.FindStringSubmatchIndex(value)
		if m == nil {
			b.WriteString(value)
			return b.String()
		}
		name, sep := value[m[2]:m[3]], value[m[4]:m[5]]
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

// isSecret reports whether name contains a word such as TOKEN, PASS or KEY, in any case of
// letters. A variable or field with such a name is treated as a secret. The word AUTHORITY
// does not count, although it contains AUTH.
func isSecret(name string) bool {
	name = strings.ReplaceAll(strings.ToUpper(name), "AUTHORITY", "")
	return slices.ContainsFunc([]string{
		"TOKEN", "SECRET", "PASS", "PWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE", "DSN", "CONNECTION_STRING",
	}, func(part string) bool { return strings.Contains(name, part) })
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

// acceptsJSON reports whether the header Accept allows JSON. It does if the header is
// missing.
func acceptsJSON(h http.Header) bool {
	accept := h.Values("Accept")
	if len(accept) == 0 {
		return true
	}
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		if q, err := strconv.ParseFloat(params["q"], 64); params["q"] != "" && (err != nil || q <= 0) {
			continue
		}
		if kind == "application/json" || kind == "application/*" || kind == "*/*" {
			return true
		}
	}
	return false
}
