// From a text to the answer that is shown, as decision.py beside this file does it: see there.
// `contract` is decision.json as an object. Probabilities are rounded to float32.

const ROUNDED = 6;
const OUTSIDE = "O";

/** Return the probabilities of one row of logits. */
export function probabilities(rule, logits) {
  if (rule.numbers) return logits.map(Math.fround);
  const temperature = rule.decisions.logit_temperature ?? 1;
  if (rule.exclusive) {
    const only = { decisions: {} };
    return columns(rule, logits).flatMap((part) => probabilities(only, part));
  }
  const scaled = logits.map((value) => value / temperature);
  if (rule.several)
    return scaled.map((value) => {
      const power = Math.exp(-Math.abs(value));
      return Math.fround((value >= 0 ? 1 : power) / (1 + power));
    });
  const largest = Math.max(...scaled);
  const powers = scaled.map((value) => Math.exp(value - largest));
  const total = powers.reduce((sum, value) => sum + value, 0);
  return powers.map((value) => Math.fround(value / total));
}

/** Return the shown answer of one row of probabilities, as `ampft predict` writes it. */
export function answer(rule, shares) {
  if (rule.numbers) return { prediction: shares[0] };
  const { label_names: names, decisions } = rule;
  let label, confidence;
  if (rule.several) {
    const limits = decisions.label_thresholds ?? names.map(() => rule.threshold);
    let has = shares.map((share, index) => share >= Math.fround(limits[index]));
    if (rule.exclusive)
      has = columns(rule, shares).flatMap((part) => {
        const best = part.indexOf(Math.max(...part));
        return part.map((_, index) => index === best);
      });
    label = names.filter((name, index) => has[index]).join(separator(rule.separator, names));
    confidence = Math.min(...shares.map((share, i) => (has[i] ? share : Math.fround(1 - share))));
  } else {
    const chosen = chosenClass(decisions, names, shares);
    [label, confidence] = [names[chosen], shares[chosen]];
  }
  const shown = { prediction: label, confidence: rounded(confidence) };
  const abstention = decisions.abstention;
  if (abstention == null) return shown;
  const least = abstention.least_confidence;
  const answered = least !== null && confidence >= Math.fround(least);
  return { ...shown, prediction: answered ? label : "", answered };
}

/** Return values of labels named `column=value`, in a list for each column. */
function columns(rule, values) {
  const of = rule.label_names.map((name) => name.split("=")[0]);
  const parts = [];
  values.forEach((value, i) => (i && of[i] === of[i - 1] ? parts.at(-1).push(value) : parts.push([value])));
  return parts;
}

function chosenClass(decisions, names, shares) {
  const positive = names.indexOf(decisions.threshold_label);
  if (positive < 0) return shares.indexOf(Math.max(...shares));
  return shares[positive] >= Math.fround(decisions.threshold_of_label) ? positive : 1 - positive;
}

function separator(first, names) {
  return [first, ";", "|"].find((each) => !names.join("").includes(each)) ?? first;
}

function rounded(value) {
  return Number(value.toFixed(ROUNDED));
}

/** Return tags, confidence and entities (as numbers of words) from the probabilities of words. */
export function wordAnswer(rule, rows) {
  const best = rows.map((shares) => Math.max(...shares));
  const tags = rows.map((shares, word) => rule.label_names[shares.indexOf(best[word])]);
  const shown = { prediction: tags, confidence: rounded(Math.min(...best)) };
  return isBio(rule.label_names) ? { ...shown, entities: entities(tags) } : shown;
}

function isBio(names) {
  const types = names.filter((_, index) => index % 2).map((name) => name.slice(2));
  const all = [OUTSIDE, ...types.flatMap((type) => [`B-${type}`, `I-${type}`])];
  return names.length > 1 && names.length === all.length && all.every((tag, i) => tag === names[i]);
}

/** Return [type, first word, word after the last] of each entity, by the strict rule of BIO. */
export function entities(tags) {
  const found = [];
  let start = 0;
  let current = "";
  [...tags, OUTSIDE].forEach((tag, word) => {
    if (current && tag !== `I-${current}`) {
      found.push([current, start, word]);
      current = "";
    }
    if (tag.startsWith("B-")) [start, current] = [word, tag.slice(2)];
  });
  return found;
}

/** Return the windows of a text's tokens: slices that share `stride`, or one that is cut off. */
export function windows(tokenization, tokens, before, after) {
  const room = tokenization.max_length - before.length - after.length;
  const wrap = (part) => [...before, ...part, ...after];
  if (tokenization.stride === null) {
    const isLeft = tokenization.truncation_side === "left";
    return [wrap(isLeft ? tokens.slice(Math.max(0, tokens.length - room)) : tokens.slice(0, room))];
  }
  const parts = [];
  for (let start = 0; start === 0 || start + tokenization.stride < tokens.length; ) {
    parts.push(wrap(tokens.slice(start, start + room)));
    start += room - tokenization.stride;
  }
  return parts;
}

/** Return the mean of the logits of the windows of a text. */
export function mean(rows) {
  return rows[0].map((_, k) => rows.reduce((sum, row) => sum + row[k], 0) / rows.length);
}

/** Return a function from a text to its answer, with the tokenizer and model of transformers.js. */
export async function classifier(contract, transformers, name, dtype) {
  const { tokenization, rule } = contract;
  const fromEnd = tokenization?.stride != null && tokenization.truncation_side === "left";
  const columns = contract.input_columns.length + (contract.feature_columns ?? []).length;
  if (!tokenization || tokenization.words || fromEnd || columns > 1)
    throw new Error("This page classifies single texts, and this model reads others. Use ampft predict.");
  const tokenizer = await transformers.AutoTokenizer.from_pretrained(name);
  const model = await transformers.AutoModelForSequenceClassification.from_pretrained(name, { dtype });
  const encoded = (text, special) => tokenizer.encode(text, { add_special_tokens: special });
  return async (text) => {
    const tokens = encoded(text, false);
    const whole = encoded(text, true);
    const prefix = whole.findIndex((_, start) => tokens.every((id, i) => whole[start + i] === id));
    const before = whole.slice(0, prefix);
    const after = whole.slice(prefix + tokens.length);
    const rows = [];
    for (const ids of windows(tokenization, tokens, before, after)) {
      const of = (values) => new transformers.Tensor("int64", values.map(BigInt), [1, ids.length]);
      const inputs = { input_ids: of(ids), attention_mask: of(ids.map(() => 1)) };
      if (tokenization.inputs.includes("token_type_ids"))
        inputs.token_type_ids = of(ids.map(() => 0));
      rows.push([...(await model(inputs)).logits.data]);
    }
    return answer(rule, probabilities(rule, mean(rows)));
  };
}
