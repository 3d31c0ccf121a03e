package top

import (
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/gotower/gotower/tap/tappb"
)

// watching is the part of follower that the model uses. watch sends the requests that match req
// to the model as messages, until the model calls stop. number identifies a list of requests.
// Each message contains it, so that the model can ignore messages for a closed list. Tests for
// the model use another implementation.
type watching interface {
	watch(number int, req *tappb.WatchRequest) (stop func())
}

// model is the state of the interactive program. Its screens form a stack: the rows, one row's
// requests, one request, and the help. Only the uppermost screen is shown.
type model struct {
	config Config
	source watching
	now    func() time.Time

	width, height int
	latest        *tappb.TopResponse
	table         table
	requests      *requests
	detail        *detail
	help          bool // the help is shown
	numbers       int  // how many lists of requests were opened so far

	news    error
	newsAt  time.Time
	refused []error // rejections of processes, which are not retried
	over    error   // from overMsg; nil if the user quit
}

// newsLast is how long an error is shown. A problem that continues is reported again within
// this time.
const newsLast = 15 * time.Second

// newModel returns the model for c, whose requests come from source.
func newModel(c Config, source watching) *model {
	return &model{config: c, source: source, now: time.Now, table: newTable(c)}
}

// Init implements [tea.Model]. It returns nil, because follower sends the rows.
func (m *model) Init() tea.Cmd { return nil }

// Update implements [tea.Model]. It handles one message: a key, a new size, or data of
// follower.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	// Each message is from follower or from the terminal.
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width = msg.Width
		m.height = msg.Height
	case rowsMsg:
		m.latest = msg.answer
		m.table.take(msg.answer)
	case newsMsg:
		m.addError(msg)
	case overMsg:
		m.over = msg.err
		return m, tea.Quit
	// A message may arrive after its list has been closed.
	case seenMsg:
		if m.requests != nil && m.requests.number == msg.number {
			m.requests.take(msg)
		}
	case tea.PasteMsg:
		// Only the filter of the table takes text.
		if m.requests == nil && !m.help {
			m.table.paste(msg.Content)
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, nil
}

// addError stores an error to be shown. An error from which a process can recover is shown for
// newsLast. A permanent rejection is reported only once. Therefore it is shown until its screen,
// the table or a list of requests, is closed.
func (m *model) addError(news newsMsg) {
	switch {
	case news.number > 0 && (m.requests == nil || m.requests.number != news.number): // a list that was closed
	case !Refused(news.err):
		m.news = news.err
		m.newsAt = m.now()
	case news.number > 0:
		m.requests.refused = append(m.requests.refused, news.err)
	default:
		m.refused = append(m.refused, news.err)
	}
}

// press handles a key. The command that it returns may quit or suspend the program.
func (m *model) press(msg tea.KeyPressMsg) tea.Cmd {
	key := msg.String()
	// The order matters: keys that always work come first, then whatever takes all keys.
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case key == "ctrl+z":
		return tea.Suspend
	case m.help:
		m.help = false
		return nil
	case m.requests == nil && m.table.typing:
		m.table.write(key, msg.Text)
		return nil
	case key == "q":
		return tea.Quit
	case key == "?":
		m.help = true
		return nil
	}
	// The uppermost screen gets the key.
	switch {
	case m.detail != nil:
		m.pressDetail(key)
	case m.requests != nil:
		m.pressRequests(key)
	default:
		m.pressTable(key)
	}
	return nil
}

// pressTable handles a key for the table. Enter opens the requests of the selected row.
func (m *model) pressTable(key string) {
	if key != "enter" {
		m.table.press(key, m.body())
		return
	}
	row := m.table.selected(m.body())
	if row == nil {
		return
	}
	// The number tells this list's messages from those of earlier ones.
	m.numbers++
	m.requests = newRequests(m.numbers, row, m.table.columns.HideSources)
	m.requests.stop = m.source.watch(m.numbers, m.requests.ask(&m.config))
}

// pressRequests handles a key for the list of requests. Enter opens the selected one.
func (m *model) pressRequests(key string) {
	switch key {
	case "esc", "backspace":
		// The processes stop to send events for this list.
		m.requests.stop()
		m.requests = nil
	case "enter":
		if r := m.requests.selected(m.body()); r != nil {
			m.detail = &detail{record: r}
		}
	default:
		m.requests.press(key, m.body())
	}
}

// pressDetail handles a key for the screen with one request.
func (m *model) pressDetail(key string) {
	if key == "esc" || key == "backspace" {
		m.detail = nil
		return
	}
	m.detail.press(key, m.width, m.body())
}
