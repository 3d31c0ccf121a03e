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

// serveEnviron shows the environment, or of it what the query names; what is
// not set is null.
func (h *Handler) serveEnviron(w http.ResponseWriter, r *http.Request) {
	if !acceptsJSON(r.Header) {
		plain(w, http.StatusNotAcceptable, "the answer is application/json\n")
		return
	}
	query := r.URL.RawQuery
	if strings.Contains(query, "=") {
		answerJSON(w, http.StatusBadRequest, map[string]string{
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
		answerJSON(w, http.StatusOK, all)
		return
	}
	some := map[string]*string{}
	for name := range strings.SplitSeq(query, "&") {
		some[name] = all[name]
	}
	answerJSON(w, http.StatusOK, some)
}

const redacted = "(redacted)"

// shown is what is shown of a variable: nothing of one whose name says that it
// is a secret, and of others what is none as far as they say.
func shown(name, value string) string {
	directory := name == "PWD" || name == "OLDPWD"
	if !directory && isSecret(name) || strings.Contains(value, "PRIVATE KEY-----") {
		return redacted
	}
	return withoutSecrets(withoutUser(value))
}

// login is user:password@ where it is no URL, as MySQL has it.
var login = regexp.MustCompile(`[^\s/:@=,]*:\S*@`)

// withoutUser takes out what stands before an "@". A password may hold any
// character, so it is the last one that counts.
func withoutUser(value string) string {
	url := ""
	if before, rest, ok := strings.Cut(value, "://"); ok {
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			value, url = before, "://"+redacted+rest[at:]
		}
	}
	return login.ReplaceAllString(value, redacted+"@") + url
}

// named is a name and what it is set to inside a value: as a query, a flag, a
// header or JSON has it, k=v, --k v, k: v or "k":"v".
var named = regexp.MustCompile(
	`([\w.-]+)(\s*=\s*|["']\s*:\s*|:\s+|\s+)("(?:[^"\\]|\\.)*"|'[^']*'|(?:(?i:bearer|basic|digest|token)\s+)?[^\s&;]+)`)

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
			b.WriteString(value[:m[5]]) // what it is set to may hold more names
			value = value[m[5]:]
			continue
		}
		b.WriteString(value[:m[5]] + redacted)
		value = value[m[7]:]
	}
}

// isSecret reports whether what has that name is one, as most values do not say.
func isSecret(name string) bool {
	name = strings.ReplaceAll(strings.ToUpper(name), "AUTHORITY", "")
	return slices.ContainsFunc([]string{
		"TOKEN", "SECRET", "PASS", "PWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE", "DSN", "CONNECTION_STRING",
	}, func(part string) bool { return strings.Contains(name, part) })
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // a state that is neither text nor a number
		plain(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// acceptsJSON reads Accept; none is everything.
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
