import { Chessboard, COLOR, INPUT_EVENT_TYPE, BORDER_TYPE } from "/cm-chessboard/src/Chessboard.js";
import { Markers } from "/cm-chessboard/src/extensions/markers/Markers.js";
import { Arrows } from "/cm-chessboard/src/extensions/arrows/Arrows.js";
import { PromotionDialog, PROMOTION_DIALOG_RESULT_TYPE } from "/cm-chessboard/src/extensions/promotion-dialog/PromotionDialog.js";

const YOU = "you";
const LAST = { class: "marker-last", slice: "markerSquare" };
const CHECK = { class: "marker-check", slice: "markerSquare" };
const WRONG = { class: "marker-wrong", slice: "markerSquare" };
const HINT = { class: "marker-hint", slice: "markerDot", position: "above" };
const BEST = { class: "arrow-best" };
const OTHER = { class: "arrow-other" };
const RANDOM = { class: "arrow-random" };
const STYLE = { pieces: { file: "/sprite.svg", tileSize: 45 }, borderType: BORDER_TYPE.none, showCoordinates: true };
const element = (id) => document.getElementById(id);

const game = { start: "", moves: [], answers: [], paused: false };
let models = [], place = null, round = 0;

const board = new Chessboard(element("board"), {
  style: { ...STYLE, animationDuration: 150 },
  extensions: [
    { class: Markers, props: { sprite: "/sprite.svg", autoMarkers: null } },
    { class: Arrows, props: { sprite: "/sprite.svg", headSize: 4 } },
    { class: PromotionDialog, props: { language: "en" } },
  ],
});
const small = (id) => new Chessboard(element(id), {
  style: { ...STYLE, animationDuration: 0, showCoordinates: false },
  extensions: [{ class: Markers, props: { sprite: "/sprite.svg", autoMarkers: null } }],
});
const predicted = small("predicted"), truth = small("true");

async function ask(question, more = {}) {
  const body = JSON.stringify({ start: game.start, moves: game.moves, ...more });
  const response = await fetch(`/api/${question}`, { method: "POST", headers: { "Content-Type": "application/json" }, body });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

const player = () => element(place.turn === "w" ? "white" : "black").value;
const complain = (text) => { element("error").textContent = text; };

// An eval in pawns, or `#3` for a mate in three, which is written as 999.97.
function signed(pawns) {
  if (Math.abs(pawns) >= 900) return `${pawns < 0 ? "-" : ""}#${Math.max(1, Math.round((1000 - Math.abs(pawns)) * 100))}`;
  const rounded = Math.round(pawns * 10) / 10 || 0;
  return (rounded > 0 ? "+" : "") + rounded.toFixed(1);
}

function paragraph(text, name = "") {
  return Object.assign(document.createElement("p"), { textContent: text, className: name });
}

function showMoves() {
  const words = [];
  let number = place.first, white = place.begins === "w";
  place.san.forEach((san, at) => {
    if (white) words.push(`${number}. ${san}`);
    else words.push(at === 0 ? `${number}… ${san}` : san);
    if (!white) number++;
    white = !white;
  });
  element("moves").textContent = words.join(" ");
}

function showStatus(text) {
  element("status").textContent = text;
  element("back").disabled = game.moves.length === 0;
  const alone = element("white").value !== YOU && element("black").value !== YOU;
  element("pause").hidden = !(alone || game.paused) || place.ended !== "";
  element("pause").textContent = game.paused ? "Go on" : "Pause";
}

function showAnswer() {
  board.removeArrows();
  const host = element("answer"), answer = game.answers[game.answers.length - 1];
  if (!answer) { host.replaceChildren(paragraph("No move of a model yet.", "note")); return; }
  const table = document.createElement("table");
  table.innerHTML = `<thead><tr><th>move</th><th>eval in pawns, for ${answer.side}</th><th></th></tr></thead>`;
  const addRow = (...cells) => { const row = table.insertRow(); for (const text of cells) row.insertCell().textContent = text; };
  for (const { move, san, eval: pawns } of answer.candidates)
    addRow(san, signed(pawns), move === answer.move && !answer.replaced ? "played" : "");
  if (answer.replaced) addRow(answer.san, "", "played: random legal move");
  else if (!answer.candidates.some(({ move }) => move === answer.move)) addRow(answer.san, "", "played: chosen among the legal moves");
  const parts = [paragraph(`${answer.name}, move ${answer.number} for ${answer.side}`, "note"), table];
  if (answer.illegal.length) {
    const then = answer.replaced ? "no completion was legal, so a random legal move was played" : "a further completion was legal";
    parts.push(paragraph(`illegal: ${answer.illegal.map((text) => text || "nothing").join(", ")}; ${then}`, "bad"));
  }
  else if (answer.written !== answer.move)
    parts.push(paragraph(`The model writes ${answer.written || "no move"} and plays a move chosen among the legal ones.`, "note"));
  const text = document.createElement("code");
  text.textContent = answer.text.trim();
  host.replaceChildren(...parts, text);
  // Candidates are of the position before the move that was played.
  if (element("arrows").checked && answer.at === game.moves.length) {
    for (const { move } of answer.candidates) if (move !== answer.move) board.addArrow(OTHER, move.slice(0, 2), move.slice(2, 4));
    board.addArrow(answer.replaced ? RANDOM : BEST, answer.move.slice(0, 2), answer.move.slice(2, 4));
  }
}

async function showPrediction(mine) {
  const host = element("prediction");
  if (!element("asking").checked || game.moves.length === 0 || element("predictor").value === "") {
    host.replaceChildren(paragraph("Predicted after the first move.", "note"));
    for (const shown of [predicted, truth]) { shown.removeMarkers(); shown.setPosition(place.fen); }
    return;
  }
  const answer = await ask("predict", { model: Number(element("predictor").value) });
  if (mine !== round) return;
  for (const shown of [predicted, truth]) shown.removeMarkers();
  truth.setPosition(answer.true);
  predicted.setPosition(answer.predicted ?? "8/8/8/8/8/8/8/8");
  answer.squares.forEach((square) => predicted.addMarker(WRONG, square));
  const result = answer.wrong.length ? paragraph(`wrong: ${answer.wrong.join(", ")}`, "bad") : paragraph("The prediction is right.", "good");
  const text = document.createElement("code");
  text.textContent = answer.text;
  host.replaceChildren(result, text);
}

async function refresh() {
  const mine = ++round;
  board.disableMoveInput();
  try {
    place = await ask("position");
    if (mine !== round) return;
    await board.setPosition(place.fen, true);
    if (mine !== round) return;
    board.removeMarkers();
    const last = game.moves[game.moves.length - 1];
    if (last) for (const square of [last.slice(0, 2), last.slice(2, 4)]) board.addMarker(LAST, square);
    if (place.check) board.addMarker(CHECK, place.check);
    element("position").textContent = `${place.fen}\n\n${place.pgn}`;
    showMoves();
    showAnswer();
    const side = place.turn === "w" ? "White" : "Black";
    if (place.ended) showStatus(`Game over: ${place.ended}`);
    else if (player() === YOU) showStatus(`Your move, ${side}`);
    else if (game.paused) showStatus(`Paused, ${side} to move`);
    else showStatus(`${models[Number(player())]} is thinking for ${side}…`);
    const prediction = showPrediction(mine).catch((error) => { if (mine === round) complain(error.message); });
    if (place.ended) return;
    if (player() === YOU) board.enableMoveInput(onInput, place.turn === "w" ? COLOR.white : COLOR.black);
    else { await prediction; if (mine === round && !game.paused) await letModelMove(mine); }
  } catch (error) { if (mine === round) complain(error.message); }
}

async function letModelMove(mine) {
  const model = Number(player());
  const temperature = Number(element("temperature").value) || 0;
  const answer = await ask("answer", { model, temperature });
  if (mine !== round) return;
  game.moves.push(answer.move);
  game.answers.push({ ...answer, name: models[model], at: game.moves.length });
  await refresh();
}

function make(move) {
  game.moves.push(move);
  complain("");
  refresh();
}

function onInput(event) {
  if (event.type === INPUT_EVENT_TYPE.moveInputStarted) {
    const targets = place.legal.filter((move) => move.startsWith(event.squareFrom)).map((move) => move.slice(2, 4));
    new Set(targets).forEach((square) => board.addMarker(HINT, square));
    return targets.length > 0;
  }
  if (event.type === INPUT_EVENT_TYPE.moveInputCanceled || event.type === INPUT_EVENT_TYPE.moveInputFinished) board.removeMarkers(HINT);
  if (event.type !== INPUT_EVENT_TYPE.validateMoveInput) return true;
  const move = event.squareFrom + event.squareTo;
  const fits = place.legal.filter((legal) => legal.startsWith(move));
  if (fits.length > 1) {
    board.showPromotionDialog(event.squareTo, place.turn === "w" ? COLOR.white : COLOR.black, (result) => {
      if (result.type === PROMOTION_DIALOG_RESULT_TYPE.pieceSelected) make(move + result.piece.charAt(1));
      else refresh();
    });
    return true;
  }
  if (fits.length === 1) make(fits[0]);
  return fits.length === 1;
}

function begin(start) {
  Object.assign(game, { start, moves: [], answers: [], paused: false });
  complain("");
  return refresh();
}

element("new").addEventListener("click", () => begin(""));
element("back").addEventListener("click", () => {
  // Back to your own last move if you play. Between two models back by one move, and they stop.
  const seats = { w: element("white").value, b: element("black").value };
  const mine = Object.values(seats).includes(YOU);
  let turn = place.turn;
  do { game.moves.pop(); turn = turn === "w" ? "b" : "w"; } while (mine && game.moves.length && seats[turn] !== YOU);
  game.answers = game.answers.filter((answer) => answer.at <= game.moves.length);
  game.paused = !mine || seats[turn] !== YOU;
  refresh();
});
element("flip").addEventListener("click", async () => {
  const other = board.getOrientation() === COLOR.white ? COLOR.black : COLOR.white;
  await Promise.all([board, predicted, truth].map((shown) => shown.setOrientation(other)));
});
element("pause").addEventListener("click", () => { game.paused = !game.paused; refresh(); });
element("arrows").addEventListener("input", showAnswer);
for (const id of ["white", "black"]) element(id).addEventListener("input", () => { game.paused = false; refresh(); });
for (const id of ["predictor", "asking"]) element(id).addEventListener("input", refresh);
element("start").addEventListener("submit", async (event) => {
  event.preventDefault();
  const before = { ...game };
  game.start = element("fen").value.trim();
  game.moves = [];
  try { await ask("position"); await begin(game.start); }
  catch (error) { Object.assign(game, before); complain(error.message); }
});

models = (await ask("models")).models;
for (const id of ["white", "black", "predictor"]) {
  const choices = models.map((name, at) => new Option(name, String(at)));
  element(id).append(...(id === "predictor" ? choices : [new Option("You", YOU), ...choices]));
}
element("black").value = "0";
await begin("");
